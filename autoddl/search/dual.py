"""The memory limit's best price, and the lower bound that it proves.

For a price p >= 0 let L(p) = min over choices of cost + p (memory - limit). L is concave, piecewise
linear and nowhere above the least cost within the limit. Between a choice that is too large and one
that fits, both of least score at some price, the lines of the two meet at

    p = (cost_fits - cost_large) / (memory_large - memory_fits);

the best choice at that price replaces one of them, until it lies on the same lines: then p is the
maximum of L.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .gap import ROUNDING
from .problem import Choice, Problem

_MAX_STEPS = 24
_FIRST = 0.1  # times the cost for the whole limit: a price to begin at
_RISE = 8.0
_RISES = 2
_HIGHEST = 1e6  # times the cost for the whole limit: memory outweighs any time


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


def bracketed_price(
    problem: Problem,
    solve: Callable[[float], Choice],
    free: Choice,
    start: Dual,
    enough: float,
    near: float,
) -> Dual:
    """The best price, near enough, without the choice of least memory; a bound of inf: none fits.

    free:   the choice at price 0
    start:  what is known; its price is where to begin, if it is not 0
    enough: a bound that reaches it need not be the best
    near:   nor one that falls so little short of it, relative to itself
    """
    limit = problem.memory_limit
    large = problem.evaluate(free)
    best = max(start, Dual(0.0, score_bound(problem, free, 0.0)), key=lambda d: d.bound)
    if large[1] <= limit or best.bound >= enough:
        return best
    unit = large[0] / limit
    fits: tuple[float, float] | None = None
    price = start.price or _FIRST * unit
    for step in range(_MAX_STEPS):
        if fits is not None:
            price = (fits[0] - large[0]) / (large[1] - fits[1])
            line = large[0] + price * (large[1] - limit)
            if line <= best.bound * (1 + near):
                break
        choice = solve(price)
        found = problem.evaluate(choice)
        best = max(best, Dual(price, score_bound(problem, choice, price)), key=lambda d: d.bound)
        if best.bound >= enough:
            break
        if found[1] <= limit:
            fits = found
        elif fits is None and price == _HIGHEST * unit:
            return Dual(price, math.inf)
        else:
            large = found
            price = price * _RISE if step < _RISES else _HIGHEST * unit
    return best
