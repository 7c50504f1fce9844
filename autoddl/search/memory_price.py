"""The memory limit by a price on memory (a Lagrange multiplier).

For a price p >= 0 the least of cost + p (memory - limit) is a lower bound on the cost within the
limit. p = 0 ignores memory, a large p minimises it. `within_memory` looks for the least price whose
solution fits, and ends with a descent on the true cost under the hard limit.
"""

from __future__ import annotations

from collections.abc import Callable

from .descend import descend
from .problem import Choice, Problem, SearchResult

# Prices in decades of the price at which the whole limit costs as much as the whole iteration.
_LEAST_DECADE, _FIRST_DECADE, _LARGEST_DECADE = -3.0, 0.0, 7.0
_NARROWINGS = 10
_ROUNDING = 1e-6
_CLOSE = 0.01  # a solution this near to the lower bound is good enough


def within_memory(
    problem: Problem,
    solve: Callable[[float], tuple[Choice, int]],
    algorithm: str,
    proves: bool,
    beat_s: float = float("inf"),
) -> SearchResult | None:
    """The best solution within the memory limit, or None if even the least memory exceeds it.

    solve:  memory price in seconds per byte -> (choice, evaluations)
    proves: `solve` is exact, so that its scores bound the cost from below
    beat_s: None as well once it is clear that the cost is no less than this
    """
    limit = problem.memory_limit
    choice, evaluations = solve(0.0)
    free_cost, memory = problem.evaluate(choice)
    # Single-precision tables leave a relative error; the bound stays below it.
    bound = free_cost * (1 - _ROUNDING) if proves else float("-inf")
    if free_cost >= beat_s:
        return None
    if memory > limit:
        unit = free_cost / limit
        choice, count = solve(unit * 10**_LARGEST_DECADE)
        evaluations += count
        if problem.evaluate(choice)[1] > limit:
            return None
        low, high, decade = _LEAST_DECADE, _LARGEST_DECADE, _FIRST_DECADE
        for _ in range(_NARROWINGS):
            price = unit * 10**decade
            candidate, count = solve(price)
            evaluations += count
            cost, memory = problem.evaluate(candidate)
            if proves:
                bound = max(bound, (cost + price * (memory - limit)) * (1 - _ROUNDING))
            if memory <= limit:
                high = decade
                if cost < problem.evaluate(choice)[0]:
                    choice = candidate
            else:
                low = decade
            if bound >= beat_s:
                return None
            if high - low < 0.1 or problem.evaluate(choice)[0] <= bound * (1 + _CLOSE):
                break
            decade = (low + high) / 2
    choice, count = descend(problem, choice)
    cost, memory = problem.evaluate(choice)
    return SearchResult(
        choice, cost, memory, evaluations + count, algorithm, min(bound, cost), free_cost
    )
