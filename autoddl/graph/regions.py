"""Repeated blocks of a graph: runs of operators that occur several times in a row.

Leaving out sources and sinks, operators i and j are alike if they have the same kind, attributes
and shapes, and if the same of their inputs are parameters. A stretch of period p is a longest run
[a, b) with

    alike(i, i + p)    for all i in [a, b - p)

and contains (b - a) // p whole blocks of p operators. Of all stretches with at least two blocks,
`repeated_blocks` takes the one that covers most operators, and among equals the shortest period; it
then repeats this on the operators before and after the stretch. Blocks begin where the fewest bytes
cross, so that recomputing a block requires keeping little.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..sbp.signature import find_rule
from .graph import Graph, Op

Block = tuple[str, ...]
Blocks = tuple[Block, ...]
_ENDS = ("input", "param", "buffer", "stage_input", "stage_output", "loss")


def repeated_blocks(graph: Graph) -> tuple[Block, ...]:
    """The operator names of each repeated block, in graph order; () if there is none.

    Every block contains a matrix product. No block contains an opaque operator, which might keep
    state of its own.
    """
    return graph.once(_repeated_blocks)


def _repeated_blocks(graph: Graph) -> tuple[Block, ...]:
    ops = [op for op in graph.ops if op.kind not in _ENDS]
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(key, len(numbers)) for key in _keys(graph, ops)]
    crossing = crossing_bytes(graph, ops)
    found = _stretches(np.array(keys, dtype=np.int64), crossing, 0, len(ops))
    blocks = [tuple(op.name for op in ops[a:b]) for a, b in found if _is_worth_it(ops[a:b])]
    return tuple(blocks)


def _is_worth_it(ops: Sequence[Op]) -> bool:
    rules = (find_rule(op.kind) for op in ops if op.kind != "opaque")
    no_opaque = all(op.kind != "opaque" for op in ops)
    return no_opaque and any(rule is not None and rule.heavy for rule in rules)


def _keys(graph: Graph, ops: Sequence[Op]) -> list[Hashable]:
    keys: list[Hashable] = []
    for op in ops:
        held = [graph.producers[name].kind in ("param", "buffer") for name in op.inputs]
        keys.append((graph.alike[op.name], op.name if op.kind == "opaque" else "", *held))
    return keys


def crossing_bytes(graph: Graph, ops: Sequence[Op]) -> NDArray[np.int64]:
    """[n]: bytes computed before operator n that operator n or a later one reads."""
    position = {op.name: n for n, op in enumerate(ops)}
    change = np.zeros(len(ops) + 2, dtype=np.int64)
    for n, op in enumerate(ops):
        for name in op.outputs:
            readers = (position.get(user.name, n) for user, _ in graph.consumers[name])
            last = max(readers, default=n)
            change[n + 1] += graph.tensors[name].spec.bytes
            change[last + 1] -= graph.tensors[name].spec.bytes
    return change.cumsum()[: len(ops) + 1]


def _stretches(
    keys: NDArray[np.int64], crossing: NDArray[np.int64], start: int, stop: int
) -> list[tuple[int, int]]:
    """The blocks within [start, stop), as (first, last + 1)."""
    best: tuple[int, int, int] | None = None  # covered, -period, -first one that is alike
    for period in range(2, (stop - start) // 2 + 1):
        alike = keys[start : stop - period] == keys[start + period : stop]
        many = int(np.count_nonzero(alike))
        if many < period or (best is not None and many + period < best[0]):
            continue
        edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
        lengths = edges[1::2] - edges[::2]
        for at in np.flatnonzero(lengths >= period):
            found = int(lengths[at] + period) // period * period, -period, -int(edges[2 * at])
            best = found if best is None else max(best, found)
    if best is None:
        return []
    covered, period, first = best[0], -best[1], start - best[2]
    alike = keys[first : stop - period] == keys[first + period : stop]
    after = np.append(np.flatnonzero(~alike), len(alike))[0] + period  # a whole stretch's length
    first += _first(crossing[first : first + after + 1], period, covered // period)
    blocks = [(n, n + period) for n in range(first, first + covered, period)]
    before = _stretches(keys, crossing, start, first)
    return before + blocks + _stretches(keys, crossing, first + covered, stop)


def _first(crossing: NDArray[np.int64], period: int, count: int) -> int:
    """Where to begin the blocks of a stretch, so that `count` fit and the fewest bytes cross."""
    shifts = len(crossing) - 1 - period * count
    sums = [int(crossing[s : s + period * count : period].sum()) for s in range(shifts + 1)]
    return sums.index(min(sums))
