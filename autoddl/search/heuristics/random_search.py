"""Random search: the best of uniform choices that fit (AutoDDL section 4.4)."""

from __future__ import annotations

import numpy as np

from ..budget import Budget, Progress
from ..problem import Problem, SearchResult, draw


def random_search(
    problem: Problem, rng: np.random.Generator, budget: Budget, restarts: int = 32
) -> SearchResult | None:
    """`restarts` draws; with one, a random plan. A finite budget is used up instead.

    None if no draw fits the memory limit.
    """
    with Progress(problem, budget) as run:
        while budget.is_finite or run.evaluations < restarts:
            run.spend()
            run.offer(draw(problem, rng))
    return run.result("random")
