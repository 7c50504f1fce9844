"""Dominated strategies, which no optimum needs.

Strategy t of a variable dominates s if nothing about t is worse: its node cost and memory, and in
every edge table of the variable its row (or column) of cost and memory. Then t may replace s in any
choice, so s can go; of equal ones the first stays. What goes shortens the rows of its neighbours,
so this repeats until nothing goes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .problem import Choice, Edge, Problem, Table

Kept = NDArray[np.int64]
_FIRST_COLUMNS = 32
_CHUNK_ELEMENTS = 100_000  # that are compared at once


@dataclass(frozen=True)
class Pruned:
    """`problem` with fewer strategies; kept[variable] are their numbers in the original."""

    problem: Problem
    kept: tuple[Kept, ...]

    def original(self, choice: Choice) -> Choice:
        """A choice of the smaller problem in the original's numbers."""
        return np.array([k[s] for k, s in zip(self.kept, choice, strict=True)], dtype=np.int64)


def prune(problem: Problem) -> Pruned:
    """The problem without dominated strategies: the same least cost under any memory limit."""
    kept = [np.arange(size) for size in problem.sizes()]
    seen: dict[Hashable, Kept] = {}
    changed = True
    while changed:
        changed = False
        for variable in range(problem.num_variables):
            key = _key(problem, kept, variable)
            if key not in seen:
                seen[key] = kept[variable][undominated(_features(problem, kept, variable))]
            if len(seen[key]) < len(kept[variable]):
                kept[variable] = seen[key]
                changed = True
    return Pruned(restrict(problem, kept), tuple(kept))


def prune_tables(problem: Problem) -> list[Kept]:
    """Of each node table the strategies that no other one dominates for all of its variables.

    Weaker than `prune`, and equal variables keep sharing a table.
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


def restrict(problem: Problem, kept: list[Kept]) -> Problem:
    """The problem with only the strategies `kept` of each variable; equal tables stay shared."""
    node_of: dict[Hashable, int] = {}
    edge_of: dict[Hashable, int] = {}
    node_cost: list[Table] = []
    node_memory: list[Table] = []
    edge_cost: list[Table] = []
    edge_memory: list[Table] = []
    nodes, edges = [], []
    for table, strategies in zip(problem.nodes, kept, strict=True):
        key = table, strategies.tobytes()
        if key not in node_of:
            node_of[key] = len(node_cost)
            node_cost.append(problem.node_cost[table][strategies])
            node_memory.append(problem.node_memory[table][strategies])
        nodes.append(node_of[key])
    for edge in problem.edges:
        rows, columns = kept[edge.first], kept[edge.second]
        key = edge.table, rows.tobytes(), columns.tobytes()
        if key not in edge_of:
            edge_of[key] = len(edge_cost)
            edge_cost.append(problem.edge_cost[edge.table][np.ix_(rows, columns)])
            edge_memory.append(problem.edge_memory[edge.table][np.ix_(rows, columns)])
        edges.append(Edge(edge.first, edge.second, edge_of[key]))
    return replace(
        problem,
        node_cost=tuple(node_cost),
        node_memory=tuple(node_memory),
        edge_cost=tuple(edge_cost),
        edge_memory=tuple(edge_memory),
        nodes=tuple(nodes),
        edges=tuple(edges),
    )


def _key(problem: Problem, kept: list[Kept], variable: int) -> Hashable:
    return (
        problem.nodes[variable],
        kept[variable].tobytes(),
        tuple(
            (edge, is_first, kept[other].tobytes())
            for other, edge, is_first in problem.neighbours[variable]
        ),
    )


def _features(problem: Problem, kept: list[Kept], variable: int) -> Table:
    """[strategies, everything that depends on one]: smaller is better in each column."""
    table, mine = problem.nodes[variable], kept[variable]
    columns = [problem.node_cost[table][mine, None], problem.node_memory[table][mine, None]]
    for other, edge, is_first in problem.neighbours[variable]:
        for tables in (problem.edge_cost, problem.edge_memory):
            values = tables[edge] if is_first else tables[edge].T
            columns.append(values[np.ix_(mine, kept[other])])
    return np.unique(np.hstack(columns), axis=1)
