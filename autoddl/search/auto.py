"""The default search: what proves optimality if it may be had, else the best that was found.

Elimination reaches most networks, and then `exact` does all. Where it leaves too much over,
coordinate descent at more prices of memory looks for a better choice, and the integer program
decides if it is small. The result's `algorithm` says which of them found the choice.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .budget import Budget, Progress
from .elimination import eliminate
from .exact import prove, solve_if_small
from .heuristics.coordinate_descent import descend_with_restarts
from .lagrangian import within_limit
from .problem import Choice, Problem, SearchResult

_EVALUATIONS = 4_000  # of the first descents
_PROGRAM_COLUMNS = 3_000
_PROGRAM_NODES = 100  # of the solver's tree


def auto(
    problem: Problem, rng: np.random.Generator, budget: Budget, restarts: int = 32
) -> SearchResult | None:
    """None if no choice fits the memory limit (or none was found within the budget).

    restarts: starts of descents at each price of memory, where elimination does not reach
    """
    name = "elimination"
    with Progress(problem, budget) as run:
        is_all = False
        with Progress(problem, _within(run, _EVALUATIONS)) as inner:
            is_all = prove(problem, rng, inner, restarts)
        run.adopt(inner)
        if is_all or run.is_done or run.is_over or inner.end == "interrupted":
            run.end = inner.end
        else:
            name = _search_further(problem, rng, run, restarts)
    if run.best is None and run.end == "budget":
        run.offer(_smallest(problem))
    return run.result(name)


def _within(run: Progress, evaluations: int) -> Budget:
    """What is left of the budget, and at most so many evaluations."""
    left = run.remaining
    return dataclasses.replace(left, evaluations=min(left.evaluations, evaluations))


def _smallest(problem: Problem) -> Choice:
    """A choice of about the least memory: what a budget too small for any other gives."""
    price = 1e6 / problem.memory_limit  # seconds a byte: memory outweighs any time
    return eliminate(problem, price, frozenset()).expand_greedily()


def _search_further(
    problem: Problem, rng: np.random.Generator, run: Progress, restarts: int
) -> str:
    """Offer what other searches find, and raise the bound; the name of the one with the best."""

    def solve(price: float) -> Choice:
        return descend_with_restarts(problem, rng, run, price, frozenset(), restarts)

    name, before = "elimination", run.cost
    found = within_limit(problem, solve)
    if found is not None:
        run.offer(found)
    if run.cost < before:
        name = "coordinate_descent"
    if not run.is_done:
        with Progress(problem, _within(run, _PROGRAM_NODES)) as inner:
            solve_if_small(problem, inner, _PROGRAM_COLUMNS)
        if inner.cost < run.cost:
            name = "integer"
        run.adopt(inner)
    return name
