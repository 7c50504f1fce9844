"""The parts of a plan: placed operators and the edges between them."""

from __future__ import annotations

from dataclasses import dataclass

from ..sbp.collectives import Step
from ..sbp.placement import NdSbp


@dataclass(frozen=True)
class PlannedOp:
    """The placements of an operator's tensors and gradients; None where there is no gradient."""

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
    Edges from a `param` run once per mini-batch, the others once per micro-batch. Of a parameter
    that is stored split, `zero_stage` (`cost.storage`) says what runs more often: from 2 on the way
    back for each micro-batch, at 3 the way forward before each pass.
    """

    op: str
    index: int
    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    zero_stage: int = 0
