"""How the rows of a batch count: in micro-batches that add up, and in a batch that is shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.graph import Graph
from ..graph.padding import Padding, find_padding
from ..graph.rows import Rows, find_rows, known_from
from .backend import Tensor
from .kernel import Filled


@dataclass(frozen=True)
class Counting:
    """How the micro-batches of a batch add up, `parts` of them.

    padding: None if a batch cannot be filled up; `why` says why
    """

    rows: Rows
    padding: Padding | None
    parts: int
    why: str = ""

    @staticmethod
    def of(
        graph: Graph, parts: int, evaluates: bool = False, stages: Sequence[Graph] = ()
    ) -> Counting:
        """Of a whole model's graph, which is cut into `stages`, in training or evaluation."""
        graph = graph.in_mode(not evaluates)
        stages = [stage.in_mode(not evaluates) for stage in stages]
        rows = find_rows(graph, evaluates)
        spread = [name for name in rows.known for stage in stages if _is_spread(stage, name)]
        if spread:
            why = f"{spread[0]}, a sum over all rows, is computed in several stages; drop_last=True"
            return Counting(rows if parts > 1 else replace(rows, known={}), None, parts, why)
        try:
            return Counting(rows, find_padding(graph, evaluates), parts)
        except ValueError as error:
            return Counting(rows, None, parts, str(error))

    def share(self, filled: Filled | None) -> float:
        """The weight of each micro-batch's loss."""
        share = self.rows.share(self.parts)
        if filled is not None and self.padding is not None:
            share *= filled.share**-self.padding.power
        return share

    def scales(self) -> dict[tuple[str, int], float]:
        """(Operator, input index) -> the factor by which that input is multiplied."""
        return self.rows.scales(self.parts)


def _is_spread(stage: Graph, name: str) -> bool:
    """True if a stage adds up what others compute; it cannot do so before they have begun."""
    maker = stage.producers.get(name)
    is_here = maker is not None and maker.kind != "stage_input"
    return is_here and known_from(stage, name) is None


def rows_of(graph: Graph, inputs: Sequence[Any], default: int, least: int = 1) -> int:
    """Rows of the batch that `inputs` are, by the first one that has a batch dim.

    ValueError if there are fewer than `least`.
    """
    for op in graph.ops:
        if op.kind == "input" and op.attrs["index"] < len(inputs):
            dims = graph.tensors[op.outputs[0]].batch_dims
            value = inputs[op.attrs["index"]]
            if dims and getattr(value, "ndim", 0) > dims[0]:
                rows = value.shape[dims[0]]
                if rows < least:
                    raise ValueError(f"a batch has rows, got none: shape {tuple(value.shape)}")
                return rows
    return default


class Given:
    """What the user gives to a step: a batch, this rank's rows of one, or a shorter batch.

    own: how many rows of a batch this rank reads
    """

    def __init__(self, counting: Counting, graph: Graph, batch: int, own: int) -> None:
        self._counting = counting
        self._graph = graph
        self._batch = batch
        self._own = own
        self._whole: bool | None = None  # what the last batch of full size was, if it can be told

    def filled(self, tensors: Sequence[Tensor]) -> Filled | None:
        """How a shorter batch is filled up. ValueError if the model does not allow it."""
        rows = rows_of(self._graph, tensors, self._batch, least=min(self._own, 1))
        if rows >= self._batch or (rows == self._own and not self._whole):
            if self._own < self._batch:
                self._whole = rows >= self._batch
            return None
        if self._whole is False:
            raise ValueError(
                f"expected {self._own} rows, this rank's of a batch, as before, got {rows}; only "
                "whole batches can be shorter (DataLoader has drop_last=True)"
            )
        if self._counting.padding is None:
            raise ValueError(f"expected {self._batch} rows, got {rows}. {self._counting.why}")
        return Filled(rows, self._batch)
