"""The default search: what proves optimality if it may be had, else the best that was found.

Elimination reaches most networks, and then `exact` does all. Where it leaves too much over,
coordinate descent at a few prices of memory looks for a good choice, and the integer program
decides if it is small. The result's `algorithm` says which of them found the choice.
"""

from __future__ import annotations

import math

import numpy as np

from .budget import Budget, Progress
from .elimination import eliminate
from .exact import prove, solve_if_small
from .heuristics.coordinate_descent import offer_descents
from .problem import Problem, SearchResult

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
        if not prove(problem, run) and not run.is_done:
            before, name = run.cost, "coordinate_descent"
            offer_descents(problem, rng, run, frozenset(), restarts)
            name = name if run.cost < before else "elimination"
            before = run.cost
            if not run.is_done:
                solve_if_small(problem, run, _PROGRAM_COLUMNS, _PROGRAM_NODES)
            name = "integer" if run.cost < before else name
    if run.best is None and run.end == "budget":  # it was too small for any other choice
        run.offer(eliminate(problem, math.inf, frozenset()).expand_greedily())
    return run.result(name)
