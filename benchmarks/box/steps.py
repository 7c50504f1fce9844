"""The steps to measure: placement and step, as texts."""

from __future__ import annotations

import itertools

from autoddl.sbp.collectives import legal_steps
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, P, S

Case = tuple[str, str]

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
