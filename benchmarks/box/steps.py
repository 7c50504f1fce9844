"""The steps to measure, and what each should send through a host's link."""

from __future__ import annotations

import itertools

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S
from autoddl.sbp.steps import Step, legal_steps
from autoddl.sbp.traffic import nic_bytes

Case = tuple[str, str]  # placement, step

COLLECTIVES = ((S(0), B), (P, S(0)), (P, B), (S(0), S(1)))


def collective_cases(mesh: Mesh) -> list[Case]:
    """Every collective over every subset of the axes; the other axes hold replicas."""
    axes = range(mesh.num_axes)
    found = []
    for size in range(1, mesh.num_axes + 1):
        for chosen in itertools.combinations(axes, size):
            for source, target in COLLECTIVES:
                nd = NdSbp.broadcast(mesh.num_axes).replace(chosen, source)
                (step,) = (s for s in legal_steps(nd, 2) if s.axes == chosen and s.target == target)
                found.append((str(nd), str(step)))
    return found


def one_step_cases(mesh: Mesh, dims: int) -> list[Case]:
    """Every step that a plan may take between two placements of a tensor of `dims` dims."""
    labels = (P, B, *map(S, range(dims)))
    return [
        (str(nd), str(step))
        for nd in map(NdSbp, itertools.product(labels, repeat=mesh.num_axes))
        for step in legal_steps(nd, dims)
    ]


def predicted_bytes(case: Case, shape: tuple[int, ...], mesh: Mesh) -> float:
    """Bytes of float32 that each host's link carries each way."""
    placement, step = case
    return nic_bytes(TensorSpec(shape), NdSbp.parse(placement), [Step.parse(step)], mesh)
