"""Synthetic batches for a traced model: right shapes and dtypes, and integers that it accepts.

Floats are normally distributed. An integer input that is used as indices of a table, or as class
numbers of a loss, is below the number of rows or classes; any other is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..graph.graph import Graph
from ..sbp.signature import find_rule

ANY_INTEGER = 2  # below which an integer is that nothing limits: 0 or 1 suits flags and masks


def integer_limits(graph: Graph) -> dict[int, int]:
    """Position in the example -> what the integers there must be below, for the integer inputs."""
    return {
        op.attrs["index"]: _limit(graph, op.outputs[0]) or ANY_INTEGER
        for op in graph.ops
        if op.kind == "input" and not graph.tensors[op.outputs[0]].spec.is_float
    }


def _limit(graph: Graph, name: str) -> int | None:
    """The least limit that a reader of the integer tensor `name` sets."""
    limits: list[int] = []
    for op, index in graph.consumers[name]:
        rule = find_rule(op.kind)
        if rule is not None and rule.index_limit is not None:
            if index == 1:
                limits.append(rule.index_limit(graph.spec(op)))
        elif not any(graph.tensors[out].spec.is_float for out in op.outputs):
            limits += [found for out in op.outputs if (found := _limit(graph, out)) is not None]
    return min(limits, default=None)


def synthetic_batches(
    example: Sequence[np.ndarray], graph: Graph, steps: int, seed: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """`steps` batches like `example` (inputs, then target) for the model traced as `graph`."""
    limits = integer_limits(graph)
    rng = np.random.default_rng(seed)

    def like(index: int, array: np.ndarray) -> np.ndarray:
        if np.issubdtype(array.dtype, np.floating):
            return rng.standard_normal(array.shape).astype(array.dtype)
        below = limits.get(index, ANY_INTEGER)
        return rng.integers(0, below, array.shape).astype(array.dtype)

    for _ in range(steps):
        yield tuple(like(index, array) for index, array in enumerate(example))
