"""Coordinate descent with restarts, AutoDDL section 4.4.

One step minimises the total over one variable with all others fixed,

    s_i <- argmin ( node[i] + sum_j edge[i, j][:, s_j] ),

the sweep repeats until nothing changes, and the search begins anew from another random choice. The
memory limit is hard: a step only goes where the total memory stays within the limit, or falls while it
is above. `descend.descend` is one descent under the limit, `coordinate_descent` the algorithm with restarts: it
descends over the heavy variables, with the light ones between them eliminated exactly, then once
over all.
"""

from __future__ import annotations

import time

import numpy as np

from .budget import Budget
from .eliminate import Elimination, eliminate
from .memory_price import within_memory
from .problem import Choice, Problem, SearchResult


def _descend_scores(
    state: Elimination, order: list[int], start: dict[int, int], max_sweeps: int = 100
) -> tuple[dict[int, int], float, int]:
    """Unconstrained descent over the variables that remain after elimination."""
    chosen = dict(start)
    searches = 0
    for _ in range(max_sweeps):
        changed = False
        for variable in order:
            score = state.node[variable].copy()
            for other, edge in state.edges[variable].items():
                score += edge[:, chosen[other]]
            searches += 1
            best = int(np.argmin(score))
            if score[best] < score[chosen[variable]] and best != chosen[variable]:
                chosen[variable] = best
                changed = True
        if not changed:
            break
    return chosen, _score(state, chosen), searches


def _score(state: Elimination, chosen: dict[int, int]) -> float:
    total = state.constant
    for variable, strategy in chosen.items():
        total += float(state.node[variable][strategy])
        for other, edge in state.edges[variable].items():
            if variable < other:
                total += float(edge[strategy, chosen[other]])
    return total


def descend_with_restarts(
    problem: Problem,
    rng: np.random.Generator,
    budget: Budget,
    memory_price: float,
    keep: frozenset[int],
) -> tuple[Choice, int]:
    """The best of many descents on cost + memory_price * memory; (choice, line searches)."""
    state = eliminate(problem, memory_price, keep)
    order = sorted(state.node)
    if not order:
        return state.expand({}), 0
    best, best_score, searches = None, np.inf, 0
    started = time.perf_counter()
    for _ in range(budget.restarts):
        start = {v: int(rng.integers(len(state.node[v]))) for v in order}
        chosen, score, count = _descend_scores(state, order, start)
        searches += count
        if best is None or score < best_score:
            best, best_score = chosen, score
        if time.perf_counter() - started > budget.seconds:
            break
    assert best is not None
    return state.expand(best), searches


def coordinate_descent(
    problem: Problem, rng: np.random.Generator, budget: Budget
) -> SearchResult | None:
    """Coordinate descent over the heavy variables. None if no start leads within the memory limit."""

    def solve(memory_price: float) -> tuple[Choice, int]:
        return descend_with_restarts(problem, rng, budget, memory_price, problem.heavy)

    return within_memory(problem, solve, "coordinate_descent", proves=False)
