"""The parts of a plan: placed operators, the edges between them, and layers."""

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


@dataclass(frozen=True)
class PlannedLayer:
    """A layer of the plan's table: a heavy operator and the light ones around it.

    topology:    the paper's (S0:(n,g), B:(n,g), S1:(n,g)), (nodes, GPUs) tuples
    signature:   the heavy operator's placements, inputs -> outputs
    alternative: the next best topology with everything else as planned, and what it would add to
                 the iteration (seconds); "" if there is none
    """

    name: str
    op: str
    ops: tuple[str, ...]
    topology: str
    signature: str
    alternative: str = ""
    alternative_extra_s: float = 0.0


@dataclass(frozen=True)
class PlannedBaseline:
    """A known scheme on its best topology, as the planner priced it beside the plan.

    iteration_s, communication_s: seconds; None if the scheme fits on no topology
    memory_bytes: of one device; the least that was found if the scheme does not fit, None if it
                  does not divide the batch
    """

    name: str
    topology: str
    micro_batches: int
    memory_bytes: float | None
    iteration_s: float | None = None
    communication_s: float | None = None

    @property
    def fits(self) -> bool:
        return self.iteration_s is not None
