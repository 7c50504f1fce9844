"""Which strategies the cheapest choice can have: lower bounds, made exact where they mislead.

The tables begin as lower bounds of the redistributions' seconds (`sbp.counted`). Then, in turn:

1. The best choice by these tables is priced exactly: the optimum costs no more.
2. A strategy goes if every choice through it scores more than the cheapest choice known
   (`marginals`).
3. The tables that say much too little of the choice are priced exactly.

What the tables say of their best choice rises and the cheapest choice known falls until they meet.
So few tables are priced between many strategies, and most where only one or two are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..cost.gap import ROUNDING
from .eliminate import eliminate
from .marginals import Contexts
from .pair_prices import PairPrices
from .problem import Choice, Problem
from .tables import Numbered, Rows, TableBuilder

_MUCH = 0.1  # of what the bound of the choice that is farthest off says too little
_TIGHT = 1e-5  # relative: bounds are in single precision


def possible(
    builder: TableBuilder, rows: Sequence[Rows], prices: PairPrices, ceiling: float
) -> tuple[list[Rows], float]:
    """Those of `rows` that a choice of no more than `ceiling` seconds can have which is cheapest.

    And the least cost known of a choice among `rows`, or the ceiling if that is less. Of node
    tables without storages, whose problem elimination reaches whole.
    """
    rows, best = list(rows), ceiling
    problem = builder.among(rows, prices.least).build().problem
    while True:
        state = eliminate(problem, 0.0, frozenset())
        choice = state.expand({})
        exact, taken = _exactly(builder, rows, prices, problem, choice)
        best = min(best, exact.evaluate(taken)[0])
        contexts = Contexts(state, nodes_only=True)
        kept = [
            np.flatnonzero(contexts.through(scores) <= best * (1 + ROUNDING))
            for scores in state.nodes
        ]
        if not all(map(len, kept)):  # the ceiling is too low
            return rows, best
        edges, nodes = _misleading(problem, choice, exact, taken)
        rows = [own[which] for own, which in zip(rows, kept, strict=True)]
        problem = problem.restricted(kept)
        if not edges and not nodes:
            return rows, best
        costs = builder.among(rows, prices).seconds(edges, nodes)
        problem = replace(
            problem,
            edge_cost=_with(problem.edge_cost, costs[0]),
            node_cost=_with(problem.node_cost, costs[1]),
        )


def _exactly(
    builder: TableBuilder,
    rows: Sequence[Rows],
    prices: PairPrices,
    problem: Problem,
    choice: Choice,
) -> tuple[Problem, Choice]:
    """The exact problem of the strategies of a choice, and the choice in it."""
    numbers = [np.unique(choice[np.array(problem.nodes) == t]) for t in range(len(rows))]
    chosen = [own[number] for own, number in zip(rows, numbers, strict=True)]
    taken = [
        int(np.searchsorted(numbers[table], strategy))
        for table, strategy in zip(problem.nodes, choice, strict=True)
    ]
    return builder.among(chosen, prices).build().problem, np.array(taken, dtype=np.int64)


def _misleading(
    problem: Problem, choice: Choice, exact: Problem, taken: Choice
) -> tuple[list[int], list[int]]:
    """Edge tables and node tables that say much less of a choice than is exact."""
    edges: dict[int, float] = {}
    nodes: dict[int, float] = {}
    for edge in problem.edges:
        bound = problem.edge_cost[edge.table][choice[edge.first], choice[edge.second]]
        cost = exact.edge_cost[edge.table][taken[edge.first], taken[edge.second]]
        if cost > bound * (1 + _TIGHT):
            edges[edge.table] = edges.get(edge.table, 0.0) + float(cost - bound)
    for variable, table in enumerate(problem.nodes):
        bound = problem.node_cost[table][choice[variable]]
        cost = exact.node_cost[table][taken[variable]]
        if cost > bound * (1 + _TIGHT):
            nodes[table] = nodes.get(table, 0.0) + float(cost - bound)
    most = max([*edges.values(), *nodes.values()], default=0.0)
    return (
        [number for number, less in edges.items() if less >= _MUCH * most],
        [number for number, less in nodes.items() if less >= _MUCH * most],
    )


def _with(tables: Sequence[np.ndarray], costs: Numbered) -> tuple[np.ndarray, ...]:
    return tuple(costs.get(number, table) for number, table in enumerate(tables))
