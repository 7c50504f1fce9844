"""Dominated strategies, which no optimum needs.

Strategy t of a node table dominates s if nothing about t is worse: its cost and memory, and in
every edge table of the variables that use it its row (or column) of cost and memory. Then t may
replace s in any choice, so s can go; of equal ones the first stays. What goes shortens the rows of
its neighbours, so this repeats until nothing goes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .problem import Problem, Table

Kept = NDArray[np.int64]
# 16 and 64 take the same time within noise (VGG13 on 64, GPT-36B on 256, GPT-0.35B on 2x16).
_FIRST_COLUMNS = 32
_CHUNK_ELEMENTS = 100_000  # that are compared at once


def prune(problem: Problem) -> list[Kept]:
    """The strategies of each node table that are left once dominated ones have gone.

    Without these, no choice needs to cost or hold more.
    """
    kept = [np.arange(len(cost)) for cost in problem.node_cost]
    sides = dict.fromkeys(
        (edge.table, problem.nodes[edge.first], problem.nodes[edge.second])
        for edge in problem.edges
    )
    around: list[set[int]] = [{number} for number in range(len(kept))]
    for _, first, second in sides:
        around[first].add(second)
        around[second].add(first)
    todo = set(range(len(kept)))
    while todo:
        for number, mine in enumerate(kept):
            if number not in todo or len(mine) < 2:
                todo.discard(number)
                continue
            todo.discard(number)
            tables = (problem.node_cost, problem.node_memory)
            columns = [table[number][mine, None] for table in tables]
            for table, first, second in sides:
                if number not in (first, second):
                    continue
                for values in (problem.edge_cost[table], problem.edge_memory[table]):
                    if number == first:
                        columns.append(values[np.ix_(mine, kept[second])])
                    if number == second:
                        columns.append(values[np.ix_(kept[first], mine)].T)
            stay = undominated(_distinct_columns(np.hstack(columns)))
            if len(stay) < len(mine):
                kept[number] = mine[stay]
                todo |= around[number]
    return kept


def _distinct_columns(table: Table) -> Table:
    rows = np.ascontiguousarray(table.T)
    first: dict[bytes, int] = {}
    for number, row in enumerate(rows.view(f"V{rows[0].nbytes}").ravel().tolist()):
        first.setdefault(row, number)
    return table[:, list(first.values())]


def undominated(features: Table) -> Kept:
    """Numbers of the rows [n, features] that no other row is at most equal to in every column."""
    remaining = np.lexsort((np.arange(len(features)), features.sum(axis=1)))
    found: list[int] = []
    while len(remaining):
        # The least sum of all that remain: nothing left dominates it, but for an equal one later.
        first, rest = remaining[0], remaining[1:]
        found.append(first)
        worse, low, high = np.arange(len(rest)), 0, _FIRST_COLUMNS
        while len(worse) and low < features.shape[1]:  # a few columns tell most rows apart
            own = features[first, low:high]
            worse = worse[(own <= features[rest[worse], low:high]).all(axis=1)]
            low, high = high, high + max(high, _CHUNK_ELEMENTS // max(1, len(worse)))
        remaining = np.delete(rest, worse)
    return np.sort(np.array(found, dtype=np.int64))
