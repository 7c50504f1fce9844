"""Steps of a plan whose prices lie far outside what the machine file's calibration measured.

A fitted price is a statement about messages and groups like those that were measured;
`cluster.link.Calibration.covers` says which are. `extrapolated_steps` lists the others, alike
ones once. A machine file without a calibration has estimates only, and nothing is listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..cluster.link import Calibration
from ..cost.account import inner_of
from ..cost.operators import reduced_spec
from ..sbp.collectives import Step, path_bytes
from ..sbp.layout import TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp, P
from .stage import StagePlan


@dataclass(frozen=True)
class Extrapolated:
    """`count` steps of `kind` in groups of nodes x gpus devices, one of them at `op`.

    bytes: the larger of a device's before and after the step
    """

    kind: str
    nodes: int
    gpus: int
    bytes: int
    count: int
    op: str


def extrapolated_steps(stage: StagePlan) -> tuple[Extrapolated, ...]:
    """The steps of one micro-batch, largest messages first; () without a calibration."""
    calibration = stage.cluster.calibration
    if calibration is None:
        return ()
    mesh = stage.mesh
    found: dict[tuple[str, int, int, int], list[str]] = {}
    for op, spec, source, steps in _paths(stage):
        for step, before, after in path_bytes(spec, steps, source, mesh):
            size = max(before, after)
            if not _is_covered(calibration, mesh, step, size):
                found.setdefault((step.kind, *mesh.topology(step.axes), size), []).append(op)
    listed = [Extrapolated(*key, len(names), names[0]) for key, names in found.items()]
    return tuple(sorted(listed, key=lambda e: (-e.bytes, e.kind, e.nodes, e.gpus)))


def _is_covered(calibration: Calibration, mesh: Mesh, step: Step, size: int) -> bool:
    if step.is_free or size == 0:
        return True
    nodes, gpus = mesh.topology(step.axes)
    return calibration.covers(step.kind, nodes, gpus, mesh.gpus_per_node / gpus, size)


def _paths(stage: StagePlan) -> Iterator[tuple[str, TensorSpec, NdSbp, tuple[Step, ...]]]:
    """(operator, tensor, placement, steps) of every redistribution and inner all-reduce."""
    graph, ops, edges = stage.graph, stage.ops, stage.edges
    for op in graph.ops:
        placed = ops[op.name]
        for index, name in enumerate(op.inputs):
            edge = edges.get((op.name, index))
            if edge is None:
                continue
            producer = graph.producers[name]
            spec = graph.tensors[name].spec
            given = ops[producer.name].outs[producer.outputs.index(name)]
            yield op.name, spec, given, edge.forward
            back = placed.grad_ins[index]
            if back is not None:
                yield op.name, spec, back, edge.backward
        if placed.inner_axes:
            inner = inner_of(graph, op)
            source = placed.ins[inner.tensor]
            nd = NdSbp(tuple(B if p.is_split and p.dim in inner.dims else p for p in source))
            step = Step.between(P, B, placed.inner_axes)
            partial = nd.replace(placed.inner_axes, P)
            yield op.name, reduced_spec(graph.spec(op), inner), partial, (step,)
