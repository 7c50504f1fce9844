"""The memory limit's best price, and the lower bound that it proves.

For a price p >= 0 let L(p) = min over choices of cost + p (memory - limit). L is concave, piecewise
linear and nowhere above the least cost within the limit. Between a choice that is too large and one
that fits, both of least score at some price, the lines of the two meet at

    p = (cost_fits - cost_large) / (memory_large - memory_fits);

the best choice at that price replaces one of them, until it lies on the same lines: then p is the
maximum of L. A price at which the best choice fits is found by raising a guess.

`approach` offers the choices on the way, joined and improved, to a search that runs. The price 0
tells what can be had if memory does not count (`free_choice`, `free_bound`), an infinite one
whether anything fits (`may_fit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .budget import Progress
from .elimination import eliminate
from .local_search import crossover, descend
from .messages import solve
from .problem import ROUNDING, Choice, Problem
from .reduced_costs import Restricted

# Half and twice the first price, the rise and the rises gave the same plans of VGG13 on 64, GPT-36B
# on 256 and GPT-0.35B on 2x16 devices, in times within noise; secants mostly end in 5 to 8 steps.
_MAX_STEPS = 24
_FIRST = 0.1  # times the cost for the whole limit: a price to begin at
_RISE = 8.0
_RISES = 2
# Times the cost for the whole limit: memory outweighs any time. 1e5 and 1e7 gave the same plans of
# GPT-0.35B on 2x16 and ResNet-50 on 2x8, in times within noise.
_HIGHEST = 1e6
_WORTH = 2.0  # times the cost: of all bytes
Found = tuple[Choice, float]  # a choice, and how much less another one may score at most


@dataclass(frozen=True)
class Dual:
    """bound: at `price` seconds a byte no choice within the limit costs less than this."""

    price: float
    bound: float


def score_bound(problem: Problem, found: Found, price: float) -> float:
    """L(price), less rounding, given a choice and how much less another one may score at most."""
    choice, short = found
    if short == math.inf:
        return -math.inf
    cost, memory = problem.evaluate(choice)
    if price == 0.0:
        return cost * (1 - ROUNDING) - short
    return (cost + price * memory) * (1 - ROUNDING) - short - price * problem.memory_limit


def best_price(
    problem: Problem,
    solve: Callable[[float], Found],
    free: Found,
    *,
    start: float = 0.0,
    near: float = 0.0,
    done: Callable[[Choice, float], bool] = lambda choice, bound: False,
) -> Dual:
    """The price of the largest bound, by solutions at a few prices; a bound of inf: none fits.

    solve: price -> a choice of little cost + price * memory, at an infinite price of little memory,
           and how much less another one may score at most
    free:  that at price 0
    start: the price to begin at, if it is not 0
    near:  so little may the bound fall short of the largest, relative to itself
    done:  told of each solution and of the best bound so far, ends the search if true
    """
    limit = problem.memory_limit
    best = Dual(0.0, score_bound(problem, free, 0.0))
    large = problem.evaluate(free[0])
    if done(free[0], best.bound) or large[1] <= limit:
        return best
    unit = large[0] / limit if limit > 0 else 1.0
    fits: tuple[float, float] | None = None
    price = start or _FIRST * unit
    for step in range(_MAX_STEPS):
        if fits is not None:
            if fits[0] <= large[0] or large[1] <= fits[1]:
                break
            price = (fits[0] - large[0]) / (large[1] - fits[1])
            line = large[0] + price * (large[1] - limit)
            if line <= best.bound + (near + ROUNDING) * abs(best.bound):
                break
        choice, short = solve(price)
        found = problem.evaluate(choice)
        bound = score_bound(problem, (choice, short), price)
        best = max(best, Dual(price, bound), key=lambda dual: dual.bound)
        if done(choice, best.bound):
            break
        if fits is not None and _score(found, price) >= _score(large, price) * (1 - ROUNDING):
            break  # on the lines of both sides
        if found[1] <= limit:
            fits = found
        elif fits is None and price == _HIGHEST * unit:
            choice, short = solve(math.inf)
            fits = problem.evaluate(choice)
            if fits[1] - short > limit or math.isinf(fits[0]):
                return Dual(price, math.inf)
            if fits[1] > limit:  # though another one may fit
                return best
            done(choice, best.bound)
        else:
            large = found
            if fits is None:
                price = price * _RISE if step < _RISES else _HIGHEST * unit
    return best


def _score(found: tuple[float, float], price: float) -> float:
    """Cost plus price times memory of a choice, given (cost, memory)."""
    return found[0] + price * found[1]


def light_choices(problem: Problem, solve: Callable[[float], Choice]) -> Iterator[Choice]:
    """A choice of about the least memory of all, and one of less cost and a little more memory.

    solve: price -> the choice of least cost + price * memory
    """
    cost, memory = problem.least()
    lightest = solve(_HIGHEST * cost / memory)
    yield lightest
    cost, memory = problem.evaluate(lightest)
    yield solve(_WORTH * cost / memory)


def within_limit(problem: Problem, solve: Callable[[float], Choice]) -> Choice | None:
    """The best choice within the limit of a search that proves nothing; None if none fits.

    solve: price -> a choice of small cost + price * memory
    """
    best: Choice | None = None

    def offer(choice: Choice, _: float) -> bool:
        nonlocal best
        cost, memory = problem.evaluate(choice)
        if memory <= problem.memory_limit and (best is None or cost < problem.evaluate(best)[0]):
            best = choice
        return False

    best_price(problem, lambda price: (solve(price), 0.0), (solve(0.0), 0.0), done=offer)
    return None if best is None else descend(problem, best)[0]


def approach(view: Restricted, run: Progress, near: float) -> Dual:
    """Offer good choices of `view`; the best price of memory, or one that proves a gap of `near`.

    The bound, to which that of the run is raised, is one of all choices; inf if nothing fits.
    """
    whole = view.whole
    sides: dict[bool, Choice] = {}  # the last choice that fits, and the last that does not

    def solve(price: float) -> Found:
        run.spend()
        solved = view.solved(price, run)
        return view.original(solved.choice), solved.short

    def done(choice: Choice, bound: float) -> bool:
        fits = whole.evaluate(choice)[1] <= whole.memory_limit
        sides[fits] = choice
        candidates = [choice]  # one that does not fit tells what the limit costs
        if len(sides) == 2:
            joined = crossover(whole, sides[True], sides[False])
            candidates += [] if joined is None else [joined]
        for candidate in candidates:
            if run.offer(candidate):
                run.offer(descend(whole, candidate, spend=run.check)[0])
        run.raise_bound(min(bound, view.ceiling))
        return bound >= whole.cost_limit or run.is_good(near, bound)

    found = best_price(whole, solve, solve(0.0), start=view.price, done=done)
    view.price = found.price
    run.raise_bound(min(found.bound, view.ceiling))
    return Dual(found.price, min(found.bound, view.ceiling))


def may_fit(problem: Problem) -> bool:
    """Whether the least memory of all choices keeps to the limit; true if that is not known."""
    smallest = [int(np.argmin(memory)) for memory in problem.node_memory]
    one = np.array([smallest[table] for table in problem.nodes], dtype=np.int64)
    cost, memory = problem.evaluate(one)
    if memory <= problem.memory_limit and cost < math.inf:  # sooner: 0.3 of 2.2 s of CSWin on 2x8
        return True
    state = eliminate(problem, math.inf, frozenset())
    return bool(state.node) or state.constant <= problem.memory_limit * (1 + 2 * ROUNDING)


def free_choice(problem: Problem, gap: float = 0.0) -> Found:
    """A cheap choice, and how much less another one costs at most, memory ignored.

    gap: that is small enough, as a part of the cost
    """
    free = solve(eliminate(problem, 0.0, frozenset()), gap=gap)
    return free.choice, free.short


def free_bound(problem: Problem) -> float:
    """No choice costs less than this, whatever its memory."""
    return score_bound(problem, free_choice(problem), 0.0)
