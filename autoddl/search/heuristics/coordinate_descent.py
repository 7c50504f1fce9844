"""Coordinate descent with restarts, AutoDDL section 4.4.

One step minimises the total over one variable with all others fixed,

    s_i <- argmin ( node[i] + sum_j edge[i, j][:, s_j] ),

the sweep repeats until nothing changes, and the search begins anew from another random start. Of
these there are two kinds, in turn: equal layers (variables with one node table) get equal random
strategies and first move together; or one variable gets a random strategy, and the others, nearest
first, what is best with those that have one.
`coordinate_descent` descends over the heavy variables, with the light ones between them eliminated
exactly, at a series of memory prices if the limit binds, then once over all under the hard limit.
`local_search.descend` is one descent under the limit.
"""

from __future__ import annotations

import numpy as np

from ..budget import Budget, Progress
from ..elimination import Elimination, eliminate
from ..lagrangian import within_limit
from ..problem import Choice, Problem, SearchResult


def _descend_scores(
    state: Elimination,
    blocks: list[list[int]],
    chosen: dict[int, int],
    run: Progress,
    max_sweeps: int = 100,
) -> None:
    """Unconstrained descent in place over the variables that elimination left.

    The variables of a block have one strategy in common and move together.
    """
    for _ in range(max_sweeps):
        changed = False
        for block in blocks:
            inside = set(block)
            score = np.zeros(len(state.node[block[0]]))
            for variable in block:
                score += state.node[variable]
                for other, edge in state.edges[variable].items():
                    if other not in inside:
                        score += edge[:, chosen[other]]
                    elif variable < other:
                        score += np.diagonal(edge)
            run.spend()
            best = int(np.argmin(score))
            if score[best] < score[chosen[block[0]]]:
                chosen.update(dict.fromkeys(block, best))
                changed = True
        if not changed:
            break


def _grow(state: Elimination, rng: np.random.Generator, run: Progress) -> dict[int, int]:
    """A start: one variable at random, then each of its neighbours' best, and so on outwards."""
    chosen: dict[int, int] = {}
    waiting = sorted(state.node)
    while waiting:
        first = waiting[rng.integers(len(waiting))]
        chosen[first] = int(rng.integers(len(state.node[first])))
        near = [first]
        for variable in near:
            for other in state.edges[variable]:
                if other not in chosen:
                    run.spend()
                    score = state.node[other].copy()
                    for third, edge in state.edges[other].items():
                        if third in chosen:
                            score += edge[:, chosen[third]]
                    chosen[other] = int(np.argmin(score))
                    near.append(other)
        waiting = [v for v in waiting if v not in chosen]
    return chosen


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
    run: Progress,
    memory_price: float,
    keep: frozenset[int],
    restarts: int,
) -> Choice:
    """The best of many descents on cost + memory_price * memory.

    Each better one is offered to `run`, which ends the search when its budget does.
    """
    run.spend()
    state = eliminate(problem, memory_price, keep)
    order = sorted(state.node)
    if not order:
        choice = state.expand({})
        run.offer(choice)
        return choice
    alike: dict[int, list[int]] = {}
    for variable in order:
        alike.setdefault(problem.nodes[variable], []).append(variable)
    single = [[variable] for variable in order]
    best, best_score = None, np.inf
    for restart in range(restarts):
        together = restart % 2 == 0
        chosen = {} if together else _grow(state, rng, run)
        if together:
            for block in alike.values():
                chosen.update(dict.fromkeys(block, int(rng.integers(len(state.node[block[0]])))))
            _descend_scores(state, list(alike.values()), chosen, run)
        _descend_scores(state, single, chosen, run)
        score = _score(state, chosen)
        if best is None or score < best_score:
            best_score = score
            best = state.expand(chosen)
            run.offer(best)
    assert best is not None
    return best


def offer_descents(
    problem: Problem,
    rng: np.random.Generator,
    run: Progress,
    keep: frozenset[int],
    restarts: int = 32,
) -> None:
    """Offer what descents at a series of prices find, and a descent within the limit from there.

    keep: variables that are not eliminated before
    """

    def solve(memory_price: float) -> Choice:
        return descend_with_restarts(problem, rng, run, memory_price, keep, restarts)

    found = within_limit(problem, solve)
    if found is not None:
        run.offer(found)


def coordinate_descent(
    problem: Problem, rng: np.random.Generator, budget: Budget, restarts: int = 32
) -> SearchResult | None:
    """Coordinate descent over the heavy variables. None if no start ends within the memory."""
    with Progress(problem, budget) as run:
        offer_descents(problem, rng, run, problem.heavy, restarts)
    return run.result("coordinate_descent")
