"""Scores of the strategies near the optimum, where few strategies can be near.

A message of an edge moves seconds from the strategies of one end into the edge, and from the edge
to those of the other end: no choice's total changes. However they are moved, the least entries of
all tables add up to a lower bound of every choice; and a choice through one strategy exceeds that
sum at least by what the strategy and its edges exceed their least entries. One sweep forwards and
one backwards find messages, each as in sequential tree-reweighted message passing (V. Kolmogorov,
2006; equal edges share them, which keeps the bounds valid). They cost no min-plus product.

`near_optimum` leaves the strategies out whose bound exceeds a choice of few strategies by more than
a margin, and eliminates what is left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .eliminate import Elimination, eliminate
from .gap import ROUNDING
from .marginals import Contexts
from .problem import Choice, Problem, Table

_FEW = 40  # strategies of each node table among which a good choice is sought
_REPEATED = 2  # uses of an edge table, on average: beyond, shared messages bound too little
_WORTH = 0.7  # of the strategies: if more are left, all are as well eliminated

_Role = tuple[int, tuple[tuple[int, bool], ...]]  # node table; edge tables, whether it is the first


@dataclass(frozen=True)
class Scores:
    """through: least score of a choice through each strategy of each node table.

    It may be too large where it exceeds `valid`. choice: the best one
    """

    choice: Choice
    lowest: float
    through: tuple[Table, ...]
    valid: float


def near_optimum(problem: Problem, margin: float) -> Scores | None:
    """Scores of which those up to `margin` (relative) above the least are exact.

    With memory ignored. None if elimination leaves variables over.
    """
    kept, valid = [np.arange(len(cost)) for cost in problem.node_cost], math.inf
    reduced = problem
    if margin < math.inf and len(problem.edges) <= _REPEATED * len(problem.edge_cost):
        below = floors(problem)
        few = [np.sort(floor.argsort(kind="stable")[:_FEW]) for floor in below]
        state = eliminate(problem.restricted(few), 0.0, frozenset())
        if state.node:
            return None
        ceiling = state.constant * (1 + margin)
        near = [np.flatnonzero(floor <= ceiling) for floor in below]
        if sum(map(len, near)) <= _WORTH * sum(map(len, kept)):
            kept, valid, reduced = near, ceiling, problem.restricted(near)
    state = eliminate(reduced, 0.0, frozenset())
    return None if state.node else _scores(problem, kept, state, valid)


def _scores(
    problem: Problem, kept: Sequence[NDArray[np.int64]], state: Elimination, valid: float
) -> Scores:
    choice = np.array(
        [kept[table][s] for table, s in zip(problem.nodes, state.expand({}), strict=True)]
    )
    contexts = Contexts(state, nodes_only=True)
    through = tuple(np.full(len(cost), np.inf) for cost in problem.node_cost)
    for table, (scores, own) in enumerate(zip(through, kept, strict=True)):
        scores[own] = contexts.through(table)
    return Scores(choice, problem.evaluate(choice)[0], through, valid)


def floors(problem: Problem) -> list[Table]:
    """Lower bounds of the score of any choice through each strategy of each node table."""
    edges = [cost.astype(np.float32) for cost in problem.edge_cost]  # messages may be rounded
    given = [(np.zeros(len(cost)), np.zeros(cost.shape[1])) for cost in edges]  # to both ends
    roles = _roles(problem)

    def node(role: _Role) -> Table:
        table, ends = role
        return problem.node_cost[table] + sum(given[e][0 if first else 1] for e, first in ends)

    for forwards in (True, False):
        for role in roles if forwards else reversed(roles):
            ends = role[1]
            onward = [edge for edge, first in ends if first == forwards]
            share = node(role) / max(len(onward), len(ends) - len(onward), 1)
            for edge in dict.fromkeys(onward):
                first, second = given[edge]
                if forwards:
                    first = first - share
                    second = _least(edges[edge] - first.astype(np.float32)[:, None], 0)
                else:
                    second = second - share
                    first = _least(edges[edge] - second.astype(np.float32), 1)
                given[edge] = first, second
    least, beyond = 0.0, []
    times = Counter(edge.table for edge in problem.edges)
    for number, (first, second) in enumerate(given):
        table = problem.edge_cost[number] - first[:, None] - second
        low = float(table.min())
        least += times[number] * low
        beyond.append((table.min(axis=1) - low, table.min(axis=0) - low))
    nodes = {role: node(role) for role in roles}
    least += sum(count * float(nodes[role].min()) for role, count in roles.items())
    least -= ROUNDING * abs(least)
    found = [np.full(len(cost), np.inf) for cost in problem.node_cost]
    for role, scores in nodes.items():
        above = scores - scores.min()
        for edge, first in role[1]:
            above = above + beyond[edge][0 if first else 1]
        np.minimum(found[role[0]], least + above, out=found[role[0]])
    return found


def _least(table: NDArray[np.float32], axis: int) -> Table:
    """What may be taken out of all of a row or column; nothing if it is infinite."""
    found = table.min(axis=axis).astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0)


def _roles(problem: Problem) -> Counter[_Role]:
    """The variables, alike if their tables and their edges' tables are; in order."""
    ends: list[list[tuple[int, bool]]] = [[] for _ in problem.nodes]
    for edge in problem.edges:
        ends[edge.first].append((edge.table, True))
        ends[edge.second].append((edge.table, False))
    return Counter((table, tuple(own)) for table, own in zip(problem.nodes, ends, strict=True))
