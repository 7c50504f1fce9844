"""The memory limit's best price, and the lower bound that it proves.

For a price p >= 0 let L(p) = min over choices of cost + p (memory - limit). L is concave, piecewise
linear and nowhere above the least cost within the limit. Between a choice that is too large and one
that fits, both of least score at some price, the lines of the two meet at

    p = (cost_fits - cost_large) / (memory_large - memory_fits);

the best choice at that price replaces one of them, until it lies on the same lines: then p is the
maximum of L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..cost.gap import ROUNDING
from .problem import Choice, Problem

_MAX_STEPS = 24


@dataclass(frozen=True)
class Dual:
    """bound: at `price` seconds a byte no choice within the limit costs less than this."""

    price: float
    bound: float


def score_bound(problem: Problem, choice: Choice, price: float) -> float:
    """L(price), less rounding, given the choice of least score at that price."""
    cost, memory = problem.evaluate(choice)
    if price == 0.0:
        return cost * (1 - ROUNDING)
    return (cost + price * memory) * (1 - ROUNDING) - price * problem.memory_limit


def best_price(
    problem: Problem,
    solve: Callable[[float], Choice],
    enough: Callable[[Choice, float], bool],
    free: Choice,
    smallest: Choice,
) -> Dual:
    """The price of the largest bound, by exact solutions at a few prices.

    solve:  price -> the choice of least cost + price * memory
    enough: told of each such choice and of the best bound so far, ends the search if true
    free: the choice at price 0, which exceeds the limit; smallest: the one of least memory, which
    fits
    """
    best = Dual(0.0, score_bound(problem, free, 0.0))
    large, fits = problem.evaluate(free), problem.evaluate(smallest)
    for _ in range(_MAX_STEPS):
        if fits[0] <= large[0] or large[1] <= fits[1]:
            break
        price = (fits[0] - large[0]) / (large[1] - fits[1])
        choice = solve(price)
        found = problem.evaluate(choice)
        best = max(best, Dual(price, score_bound(problem, choice, price)), key=lambda d: d.bound)
        if enough(choice, best.bound):
            break
        line = large[0] + price * large[1]
        if found[0] + price * found[1] >= line * (1 - ROUNDING):
            break
        if found[1] <= problem.memory_limit:
            fits = found
        else:
            large = found
    return best
