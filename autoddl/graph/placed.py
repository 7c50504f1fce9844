"""The parts of a plan: placed operators and the edges between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer

from .._files import FIELDS, OMIT, Name, Size, Stored
from ..sbp.collectives import Step
from ..sbp.placement import NdSbp

# In a file as their texts, of which few differ
StoredPlacement = Annotated[NdSbp, Stored(str, lru_cache(4096)(NdSbp.parse), str)]
StoredStep = Annotated[Step, Stored(str, lru_cache(4096)(Step.parse), str)]


@dataclass(frozen=True)
class PlannedOp:
    """The placements of an operator's tensors and gradients; None where there is no gradient.

    inner_axes: the axes along which the operator runs its own collectives
    """

    ins: tuple[StoredPlacement, ...]
    outs: tuple[StoredPlacement, ...]
    grad_outs: tuple[StoredPlacement | None, ...]
    grad_ins: tuple[StoredPlacement | None, ...]
    inner_axes: Annotated[tuple[Size, ...], OMIT] = ()

    __pydantic_config__ = FIELDS


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


class _EdgeRow(NamedTuple):
    op: Name
    number: Size  # of the input
    forward: tuple[StoredStep, ...]
    backward: tuple[StoredStep, ...]
    zero_stage: Size = 0


Edges = Mapping[tuple[str, int], PlannedEdge]  # by operator and input


def _read_edges(rows: list[_EdgeRow]) -> Edges:
    edges = {(row.op, row.number): PlannedEdge(*row) for row in rows}
    if len(edges) < len(rows):
        raise ValueError("the steps to an input are given twice")
    return edges


def _edge_rows(edges: Edges) -> list[list[str | int | list[str]]]:
    """Without the stage where it is 0."""
    return [
        [
            e.op,
            e.index,
            [*map(str, e.forward)],
            [*map(str, e.backward)],
            *[e.zero_stage][: e.zero_stage],
        ]
        for e in edges.values()
    ]


StoredEdges = Annotated[
    Edges, Stored(list[_EdgeRow], _read_edges, _edge_rows), PlainSerializer(_edge_rows)
]
