"""Random search: the best of `restarts` uniform choices that fit (AutoDDL section 4.4)."""

from __future__ import annotations

import numpy as np

from .budget import Budget
from .problem import Choice, Problem, SearchResult


def random_choice(
    problem: Problem, rng: np.random.Generator, budget: Budget
) -> SearchResult | None:
    """With one restart: a random plan. None if no draw fits the memory limit."""
    best: tuple[float, float, Choice] | None = None
    for _ in range(budget.restarts):
        choice = np.array([rng.integers(size) for size in problem.sizes()], dtype=np.int64)
        cost, memory = problem.evaluate(choice)
        if memory <= problem.memory_limit and (best is None or cost < best[0]):
            best = cost, memory, choice
    if best is None:
        return None
    cost, memory, choice = best
    return SearchResult(choice, cost, memory, budget.restarts, "random")
