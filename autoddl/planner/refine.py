"""Which strategies the cheapest choice can have: lower bounds, made exact where they mislead.

The tables begin as lower bounds of the redistributions' seconds (`sbp.counted`). Then, in turn:

1. The best choice by these tables is priced exactly: the optimum costs no more.
2. A strategy goes if every choice through it scores more than the cheapest choice known
   (`marginals`).
3. The tables that say much too little of the choice are priced exactly, small ones first: what they
   rule out need not be searched from. Before large ones, the best choice from a single start of
   theirs is priced, which rules out most of the others.

What the tables say of their best choice rises and the cheapest choice known falls until they meet.
So few tables are priced between many strategies, and most where only one or two are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..search.eliminate import eliminate
from ..search.gap import ROUNDING
from ..search.marginals import Contexts
from ..search.problem import Choice, Problem, Table
from .tables.tables import Rows, TableBuilder

_MUCH = 0.01  # of what the bound of the choice that is farthest off says too little
_MANY = 20  # strategies at both ends of a table: it waits for what the others rule out
_TIGHT = 1e-5  # relative: bounds are in single precision

_Entry = tuple[int, ...]  # a table, and the strategies of each of its variables


@dataclass
class _Exact:
    """Exact seconds of single entries of the tables of `builder`, each priced once."""

    builder: TableBuilder
    edges: dict[_Entry, float] = field(default_factory=dict)
    nodes: dict[_Entry, float] = field(default_factory=dict)

    def price(self, edges: Sequence[_Entry], nodes: Sequence[_Entry]) -> None:
        new = [edge for edge in dict.fromkeys(edges) if edge not in self.edges]
        others = [node for node in dict.fromkeys(nodes) if node not in self.nodes]
        pairs, singles = self.builder.parts(
            [(table, np.array([first]), np.array([second])) for table, first, second in new],
            [(table, np.array([strategy])) for table, strategy in others],
        )
        self.edges |= {edge: float(cost[0, 0]) for edge, (cost, _) in zip(new, pairs, strict=True)}
        self.nodes |= {node: float(cost[0]) for node, cost in zip(others, singles, strict=True)}


def possible(
    builder: TableBuilder, rows: Sequence[Rows], bounds: Problem, ceiling: float
) -> tuple[list[Rows], float]:
    """Those of `rows` that a choice of no more than `ceiling` seconds can have which is cheapest.

    And the least cost known of a choice among `rows`, or the ceiling if that is less. Of groups
    without storages, and a problem that elimination reaches whole.

    bounds: problem of `rows` with lower bounds of the exact prices, which are the builder's
    """
    exact, problem, best = _Exact(builder.among(rows, builder.prices)), bounds, ceiling
    kept = [np.arange(len(own)) for own in rows]
    # restriction leaves the edges and their tables' numbers as they are
    ends = {e.table: (bounds.nodes[e.first], bounds.nodes[e.second]) for e in bounds.edges}
    every = np.array([(e.table, e.first, e.second) for e in bounds.edges], dtype=np.int64)
    every = every.reshape(-1, 3).T
    while True:
        state = eliminate(problem, 0.0, frozenset())
        choice = state.expand({})
        edges, nodes, cost = _compared(problem, every, ends, choice, kept, exact)
        best = min(best, cost)
        contexts = Contexts(state, nodes_only=True)
        through = [contexts.through(table) for table in range(len(kept))]
        sizes = [np.count_nonzero(own <= best * (1 + ROUNDING)) for own in through]
        small = [table for table in edges if min(sizes[end] for end in ends[table]) <= _MANY]
        if small or nodes:
            edges = small
        elif edges:
            best = min(best, _nearby(problem, every, ends, choice, kept, exact, edges))
        stays = [np.flatnonzero(own <= best * (1 + ROUNDING)) for own in through]
        assert all(map(len, stays)), "the best choice is left out by its own bound"
        kept = [own[which] for own, which in zip(kept, stays, strict=True)]
        if not edges and not nodes:
            return [own[which] for own, which in zip(rows, kept, strict=True)], best
        if any(
            len(which) < len(cost) for which, cost in zip(stays, problem.node_cost, strict=True)
        ):
            problem = problem.restricted(stays)
        problem = _refined(problem, ends, kept, exact, edges, nodes)


def _compared(
    problem: Problem,
    edges: Rows,
    ends: Mapping[int, tuple[int, int]],
    choice: Choice,
    kept: Sequence[Rows],
    exact: _Exact,
) -> tuple[list[int], list[int], float]:
    """Edge tables and node tables that say much less of a choice than is exact; its exact cost.

    edges: [3, m] table, first and second of each; ends: of each edge table its node tables
    """
    numbers = np.array(
        [kept[t][s] for t, s in zip(problem.nodes, choice.tolist(), strict=True)], dtype=np.int64
    )
    table, first, second = edges
    pairs = _counted(table, numbers[first], numbers[second])
    singles = _counted(np.array(problem.nodes), numbers)
    exact.price(list(pairs), list(singles))
    cost = sum(times * exact.edges[edge] for edge, times in pairs.items())
    cost += sum(times * exact.nodes[node] for node, times in singles.items())
    place = [dict(zip(own.tolist(), range(len(own)), strict=True)) for own in kept]
    edges_s, nodes_s = np.zeros(len(problem.edge_cost)), np.zeros(len(problem.node_cost))
    for edge, times in pairs.items():
        number, left, right = edge
        at = place[ends[number][0]][left], place[ends[number][1]][right]
        edges_s[number] += times * _excess(exact.edges[edge], float(problem.edge_cost[number][at]))
    for node, times in singles.items():
        bound = float(problem.node_cost[node[0]][place[node[0]][node[1]]])
        nodes_s[node[0]] += times * _excess(exact.nodes[node], bound)
    enough = max(_MUCH * max(edges_s.max(initial=0.0), nodes_s.max(initial=0.0)), 1e-300)
    return (
        np.flatnonzero(edges_s >= enough).tolist(),
        np.flatnonzero(nodes_s >= enough).tolist(),
        cost,
    )


def _nearby(
    problem: Problem,
    every: Rows,
    ends: Mapping[int, tuple[int, int]],
    choice: Choice,
    kept: Sequence[Rows],
    exact: _Exact,
    edges: Sequence[int],
) -> float:
    """Exact cost of a choice with what `choice` has at one end of these edge tables.

    The best, but for what is not exact: so each table is searched from one strategy only.
    """
    fixed = {min(ends[table], key=lambda end: len(kept[end])) for table in edges}
    chosen = dict(zip(problem.nodes, choice.tolist(), strict=True))
    rows = [
        np.array([chosen[table]]) if table in fixed else np.arange(len(own))
        for table, own in enumerate(kept)
    ]
    few = [own[which] for own, which in zip(kept, rows, strict=True)]
    problem = _refined(problem.restricted(rows), ends, few, exact, edges, ())
    best = eliminate(problem, 0.0, frozenset()).expand({})
    return _compared(problem, every, ends, best, few, exact)[2]


def _counted(*columns: NDArray[np.int64]) -> dict[tuple[int, ...], int]:
    """How often each row stands there."""
    rows, times = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return dict(zip(map(tuple, rows.tolist()), times.tolist(), strict=True))


def _excess(cost: float, bound: float) -> float:
    return cost - bound if cost > bound * (1 + _TIGHT) else 0.0


def _refined(
    problem: Problem,
    ends: Mapping[int, tuple[int, int]],
    kept: Sequence[Rows],
    exact: _Exact,
    edges: Sequence[int],
    nodes: Sequence[int],
) -> Problem:
    """With exact seconds in these edge tables and node tables."""
    pairs, singles = exact.builder.parts(
        [(table, kept[ends[table][0]], kept[ends[table][1]]) for table in edges],
        [(table, kept[table]) for table in nodes],
    )
    edge_cost: list[Table] = list(problem.edge_cost)
    node_cost: list[Table] = list(problem.node_cost)
    for table, (cost, _) in zip(edges, pairs, strict=True):
        edge_cost[table] = cost
    for table, cost in zip(nodes, singles, strict=True):
        node_cost[table] = cost
    return replace(problem, edge_cost=tuple(edge_cost), node_cost=tuple(node_cost))
