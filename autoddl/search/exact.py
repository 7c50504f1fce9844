"""Exact search by eliminating every variable (`eliminate`), for graphs of treewidth at most two.

With a memory limit that binds, the exact solutions for a series of memory prices give a plan within
the limit and a lower bound (`memory_price`).
"""

from __future__ import annotations

import numpy as np

from .budget import Budget
from .coordinate_descent import descend_with_restarts
from .eliminate import eliminate
from .memory_price import within_memory
from .problem import Choice, Problem, SearchResult


def auto(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """Elimination where it reaches; coordinate descent on what it leaves. None if nothing fits."""
    left = eliminate(problem, 0.0, frozenset())
    if left.node:

        def descend_rest(memory_price: float) -> tuple[Choice, int]:
            return descend_with_restarts(problem, rng, budget, memory_price, frozenset())

        return within_memory(
            problem, descend_rest, "elimination+coordinate_descent", False, budget.beat_s
        )

    def solve(memory_price: float) -> tuple[Choice, int]:
        state = left if memory_price == 0.0 else eliminate(problem, memory_price, frozenset())
        return state.expand({}), problem.num_variables

    return within_memory(problem, solve, "elimination", True, budget.beat_s)
