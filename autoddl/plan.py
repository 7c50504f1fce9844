"""The plan: the only hand-over from planning to the runtime. (data only so far)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .graph import Graph
from .sbp.mesh import Mesh
from .sbp.placement import NdSbp
from .sbp.redistribute import Step


@dataclass(frozen=True)
class PlannedOp:
    """The placements of one operator; None where there is no gradient."""

    name: str
    ins: tuple[NdSbp, ...]
    outs: tuple[NdSbp, ...]
    grad_outs: tuple[NdSbp | None, ...]
    grad_ins: tuple[NdSbp | None, ...]
    inner_axes: tuple[int, ...] = ()  # axes along which the operator runs its own collectives


@dataclass(frozen=True)
class PlannedEdge:
    """How a tensor travels from its producer to input `index` of `op`, and its gradient back.

    forward: producer's outs -> op.ins[index]; backward: op.grad_ins[index] -> producer's grad_outs.
    Edges from a `param` run once per mini-batch, the others once per micro-batch.
    """

    op: str
    index: int
    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Plan:
    graph: Graph  # with forks, at the micro-batch's size
    mesh: Mesh
    micro_batches: int
    seed: int
    ops: Mapping[str, PlannedOp]
    edges: Mapping[tuple[str, int], PlannedEdge]
