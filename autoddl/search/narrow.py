"""The optimum within the memory limit, of problems that elimination reaches whole.

1. The best price of memory p gives a lower bound, and choices on the way the best cost so far.
2. A choice within the limit that costs less than the best so far scores less than best + p limit.
   So a strategy goes unless some choice through it does (`marginals`): it cannot be in an optimum.
3. With the few strategies left, the best price again, and again.
4. What gap is left is closed by elimination with fronts (`fronts`) below rising ceilings; once
   these are long, along the network (`along`). Before, dominated strategies go.

`narrow` offers what it finds and raises the bound of the proof, up to the optimum itself.
"""

from __future__ import annotations

from collections.abc import Callable

from .along import eliminated_along, loosened
from .crossing import crossing
from .descend import descend
from .eliminate import eliminate
from .fronts import AtPrice, Least, TooMany, least_within
from .gap import ROUNDING
from .lagrangian import Dual, best_price, score_bound
from .marginals import Contexts
from .problem import Choice, Problem
from .progress import Progress
from .view import View
from .wide_elimination import best_choice

_NEAR = 0.001  # relative gap from which on strategies are dropped
_WORK = 5_000_000_000  # pairs of cost and memory
_QUICK_WORK = 5_000_000  # of a ceiling at first; above it the next one rises little
_LONG = 300_000  # pairs: other prices and a loosened problem are worth their eliminations
_LOSS = ROUNDING  # relative: costs that differ by less count as equal
_FIRST_CEILING = 1 / 16  # of the way from the bound to the best cost
_OTHER_PRICES = (0.5, 2.0)  # times the best price: they rule out pairs of extreme memory
_RISE = 3.0
_SMALL_RISE = 1.4
_ROUNDS = 4
_WORTH = 0.9  # of the strategies: another round drops too few


def may_fit(problem: Problem) -> bool:
    """Whether the least memory of all choices keeps to the limit, by elimination.

    For problems without costs. True if elimination does not reach them whole.
    """
    state = eliminate(problem, 1.0, frozenset())
    return bool(state.node) or state.constant <= problem.memory_limit * (1 + 2 * ROUNDING)


def narrow(
    problem: Problem, run: Progress, raise_bound: Callable[[float], None], free: Choice
) -> None:
    """Offer the optimum to `run` and prove it by its bound, if it may be had.

    free: the choice of least cost, which exceeds the limit
    """
    view, best = View.of(problem), Dual(0.0, score_bound(problem, free, 0.0))
    near = max(_NEAR, run.budget.gap)
    for _ in range(_ROUNDS):
        found = approach(view, run, near)
        best = max(best, found, key=lambda dual: dual.bound)
        raise_bound(best.bound)
        if run.best is None or run.is_good(best.bound) or best.bound >= run.budget.beat_s:
            return
        if view.eliminated(best.price).node:  # reduced costs need a complete elimination
            return
        smaller = _dropped(view, run, best.price, run.to_beat)
        if smaller is None:  # nothing can be better than the best
            raise_bound(run.to_beat)
            return
        done = near == 0.0 and smaller.size > _WORTH * view.size
        view, near = smaller, 0.0
        if done:
            break
    if best.bound < run.budget.useful_s:
        _close(view, run, raise_bound, best)


def approach(view: View, run: Progress, near: float) -> Dual:
    """Offer good choices of `view`; the best price of memory, or one that proves a gap of `near`.

    The bound is one of all choices that cost less than the best so far, if `view` has those. It is
    inf if nothing fits.
    """
    whole = view.whole
    sides: dict[bool, Choice] = {}  # the last choice that fits, and the last that does not

    def solve(price: float) -> Choice:
        run.spend()
        choice = best_choice(view.eliminated(price))
        assert choice is not None, "whether tables are too large depends on no price"
        return view.original(choice)

    def done(choice: Choice, bound: float) -> bool:
        fits = whole.evaluate(choice)[1] <= whole.memory_limit
        sides[fits] = choice
        candidates = [choice] if fits else []
        if len(sides) == 2:
            joined = crossing(whole, sides[True], sides[False])
            candidates += [] if joined is None else [joined]
        for candidate in candidates:
            if run.offer(candidate):
                run.offer(descend(whole, candidate, spend=run.check)[0])
        return bound >= run.budget.beat_s or run.is_good(bound, near)

    found = best_price(whole, solve, solve(0.0), start=view.price, done=done)
    view.price = found.price
    is_part = view.size < sum(map(len, whole.node_cost))
    return Dual(found.price, min(found.bound, run.to_beat)) if is_part else found


def _dropped(view: View, run: Progress, price: float, cost: float) -> View | None:
    """`view` without the strategies of which nothing that costs less than `cost` can be made."""
    run.spend()
    contexts = view.contexts(price)
    ceiling = cost + price * view.whole.memory_limit
    ceiling += ROUNDING * abs(ceiling)
    masks = [contexts.through(table) <= ceiling for table in range(len(view.kept))]
    if any(not masks[table].any() for table in set(view.whole.nodes)):
        return None
    return view.some(masks)


def _close(view: View, run: Progress, raise_bound: Callable[[float], None], dual: Dual) -> None:
    """Search `view` by fronts below rising ceilings."""
    bound, gap, part = dual.bound, run.to_beat - dual.bound, _FIRST_CEILING
    looked = 0
    alive = _dropped(view, run, dual.price, run.to_beat)
    if alive is None:
        raise_bound(run.to_beat)
        return
    alive = alive.undominated()  # so it stays below a lower ceiling
    while True:
        ceiling = min(bound + part * gap, run.to_beat)
        smaller = _dropped(alive, run, dual.price, ceiling)
        if smaller is not None:
            is_long = looked > _LONG
            most = _WORK if is_long else _QUICK_WORK
            try:
                found = _least(smaller.problem, run, dual.price, ceiling, most, is_long)
            except TooMany:
                if is_long:
                    return
                looked = most  # not as short as was hoped
                continue
            if found.choice is not None:  # the cheapest of all that cost less than the ceiling
                run.offer(smaller.original(found.choice))
                raise_bound(min(run.cost, ceiling) - _LOSS * ceiling)
                return
            raise_bound(ceiling - _LOSS * ceiling)
            looked = found.work
        else:
            looked = 0
            raise_bound(ceiling)
        if ceiling == run.to_beat:
            return
        part *= _RISE if looked <= _QUICK_WORK else _SMALL_RISE


def _least(
    problem: Problem, run: Progress, price: float, ceiling: float, work: int, is_long: bool
) -> Least:
    """The cheapest choice below the ceiling. Raises TooMany.

    is_long: fronts will be, so the problem is loosened, to go along it, and other prices are looked
    at. Short ones are made in fewer operations by halving chains of equal blocks.
    """
    if is_long:
        problem = loosened(problem)
    prices = [factor * price for factor in _OTHER_PRICES] if is_long else []
    state = eliminated_along(problem, price)
    others = [AtPrice(other, Contexts(eliminated_along(problem, other))) for other in prices]
    loss = _LOSS * ceiling
    options = price, ceiling, work, loss, run.check, others
    return least_within(problem, state, Contexts(state), *options)
