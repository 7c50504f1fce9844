"""The parts of a plan: placed operators and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def to_json(self) -> dict[str, Any]:
        """Without its name; `from_json` inverts it."""
        return {
            "ins": _texts(self.ins),
            "outs": _texts(self.outs),
            "grad_outs": _texts(self.grad_outs),
            "grad_ins": _texts(self.grad_ins),
            **({"inner_axes": list(self.inner_axes)} if self.inner_axes else {}),
        }

    @staticmethod
    def from_json(name: str, data: Mapping[str, Any]) -> PlannedOp:
        return PlannedOp(
            name,
            tuple(map(NdSbp.parse, data["ins"])),
            tuple(map(NdSbp.parse, data["outs"])),
            tuple(None if t is None else NdSbp.parse(t) for t in data["grad_outs"]),
            tuple(None if t is None else NdSbp.parse(t) for t in data["grad_ins"]),
            tuple(data.get("inner_axes", ())),
        )


@dataclass(frozen=True)
class PlannedEdge:
    """How a tensor travels from its producer to input `index` of `op`, and its gradient back.

    forward: producer's outs -> op.ins[index]; backward: op.grad_ins[index] -> producer's grad_outs.
    Edges from a `param` run once per mini-batch, the others once per micro-batch. Of a parameter
    that is stored split, `zero_stage` (`cost.sharded_storage`) says what runs more often: from 2 on
    the way back for each micro-batch, at 3 the way forward before each pass.
    """

    op: str
    index: int
    forward: tuple[Step, ...] = ()
    backward: tuple[Step, ...] = ()
    zero_stage: int = 0

    def to_json(self) -> list[Any]:
        """Its fields in order; `from_json` inverts it."""
        return [
            self.op,
            self.index,
            [str(s) for s in self.forward],
            [str(s) for s in self.backward],
            *([self.zero_stage] if self.zero_stage else []),
        ]

    @staticmethod
    def from_json(data: Sequence[Any]) -> PlannedEdge:
        op, index, forward, backward, *zero_stage = data
        return PlannedEdge(
            op,
            index,
            tuple(map(Step.parse, forward)),
            tuple(map(Step.parse, backward)),
            *zero_stage,
        )


def _texts(placements: tuple[NdSbp | None, ...]) -> list[str | None]:
    return [None if nd is None else str(nd) for nd in placements]
