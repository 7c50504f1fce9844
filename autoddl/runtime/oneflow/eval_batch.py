"""Batches of other sizes than in training, for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import oneflow as flow

from ...graph.graph import Graph
from ...graph.placed import PlannedOp
from ...graph.rows import rows_apart
from ...sbp.layout import is_even
from ...sbp.mesh import Mesh
from .program import needed_ops

LARGEST_BATCH_HINT = 4096


@dataclass(frozen=True)
class Sized:
    """A planned graph; `wanted`: tensors (or operators) that an evaluation needs of it."""

    graph: Graph
    ops: Mapping[str, PlannedOp]
    mesh: Mesh
    wanted: frozenset[str]

    def splits_divide(self, batch: int) -> bool:
        """True if every planned split is even at this size."""
        try:
            graph = self.graph.with_batch(batch)
        except ValueError:
            return False
        needed = needed_ops(graph, self.wanted)
        for op in graph.ops:
            if op.name in needed:
                planned, spec = self.ops[op.name], graph.spec(op)
                pairs = zip(
                    (*spec.inputs, *spec.outputs), (*planned.ins, *planned.outs), strict=True
                )
                if not all(is_even(t.shape, nd, self.mesh) for t, nd in pairs):
                    return False
        return True


def rows_of(graph: Graph, inputs: Sequence[Any], default: int) -> int:
    """Rows of the batch that `inputs` are, by the first one that has a batch dim."""
    for op in graph.ops:
        if op.kind == "input" and op.attrs["index"] < len(inputs):
            dims = graph.tensors[op.outputs[0]].batch_dims
            value = inputs[op.attrs["index"]]
            if dims and isinstance(value, flow.Tensor) and value.ndim > dims[0]:
                return value.shape[dims[0]]
    return default


def micro_batches_in(graph: Graph, batch: int) -> int | None:
    """How many parts of the graph's own size the batch is, if its results can be put together."""
    if graph.batch in (0, batch):
        return 1
    if batch % graph.batch == 0 and rows_apart(graph).issuperset(graph.outputs):
        return batch // graph.batch
    return None


def check_divides(plans: Sequence[Sized], batch: int) -> None:
    """ValueError, which says what would fit, if a planned split does not divide the batch."""
    if all(plan.splits_divide(batch) for plan in plans):
        return
    fitting = (
        n for n in range(1, LARGEST_BATCH_HINT) if all(plan.splits_divide(n) for plan in plans)
    )
    step = next(fitting, None)
    hint = f"; give a multiple of {step} rows" if step else ""
    raise ValueError(f"the plan's splits do not divide a batch of {batch} rows{hint}")
