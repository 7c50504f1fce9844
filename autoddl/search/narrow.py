"""The optimum within the memory limit, of problems that elimination reaches whole.

1. The best price of memory p gives a lower bound, and choices on the way the best cost so far.
2. A choice within the limit that costs less than the best so far scores less than best + p limit.
   So a strategy goes unless some choice through it does (`marginals`): it cannot be in an optimum.
3. With the few strategies left, the best price again, and again.
4. What gap is left is closed by elimination with fronts (`fronts`) below rising ceilings; once
   these are long, along the network (`along`), or by an integer program if it is small (`counts`).
   Before, dominated strategies go.

`narrow` offers what it finds and raises the bound of the proof, up to the optimum itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .along import eliminated_along, loosened
from .counts import least_by_counts
from .crossing import crossing
from .descend import descend
from .dual import Dual, best_price, score_bound
from .eliminate import eliminate
from .fronts import AtPrice, Least, TooMany, least_within
from .gap import ROUNDING, relative_gap
from .marginals import Contexts
from .problem import Choice, Problem
from .progress import Progress
from .view import View, good_view

_NEAR = 0.001  # relative gap from which on strategies are dropped
_WORK = 5_000_000_000  # pairs of cost and memory
_SOME_WORK = 500_000_000  # where a gap is allowed, but not this one
_LITTLE_WORK = 100_000_000  # where the gap need not be closed
_QUICK_WORK = 5_000_000  # of the first ceiling there; above it the next ceiling rises little
_LONG = 300_000  # pairs: other prices and a loosened problem are worth their eliminations
_VERY_LONG = 3_000_000  # pairs: an integer program may be faster
_COLUMNS = 8_000  # of the integer program
_PROGRAM_NODES = 200
_LOSS = ROUNDING  # relative: costs that differ by less count as equal
_FIRST_CEILING = 1 / 16  # of the way from the bound to the best cost
_OTHER_PRICES = (0.5, 2.0)  # times the best price: they rule out pairs of extreme memory
_RISE = 3.0
_SMALL_RISE = 1.4
_ROUNDS = 4
_WORTH = 0.9  # of the strategies: another round drops too few
_SKETCH_PRICES = (0.0, 0.1, 0.3, 1.0, 10.0)  # times the cost for the whole limit
_LIKELY_STRATEGIES = 40
_SKETCHES = 5


@dataclass(frozen=True)
class Sketch:
    """A view of few strategies, and the best price of memory there."""

    view: View
    price: float

    def with_choice(self, choice: Choice, run: Progress, free: Choice) -> Sketch:
        """The sketch with the strategies of a choice, and its best price; offers what it finds."""
        view = self.view.with_choice(choice)
        assert run.best is not None
        return Sketch(view, _priced(view, run, free, run.best, _NEAR / 10).price)


def sketch(problem: Problem, run: Progress, free: Choice) -> Sketch | None:
    """Offer good choices of few strategies.

    free: the choice of least cost, which exceeds the limit. None if nothing among them fits.
    """
    unit = problem.evaluate(free)[0] / problem.memory_limit
    view = good_view(problem, [unit * factor for factor in _SKETCH_PRICES]).with_choice(free)
    heavy = eliminate(view.problem, 1e6 / problem.memory_limit, frozenset())
    smallest = view.original(heavy.expand({}))
    if not run.offer(smallest):
        return None
    return Sketch(view, _priced(view, run, free, smallest, _NEAR / 10).price)


def may_fit(problem: Problem) -> bool:
    """Whether the least memory of all choices keeps to the limit, by a sketch or by elimination.

    For problems without costs. True if elimination does not reach them whole.
    """
    view = good_view(problem, [1.0])
    for part in (view.problem, problem):
        state = eliminate(part, 1.0, frozenset())
        if state.node or state.constant <= problem.memory_limit * (1 + 2 * ROUNDING):
            return True
    return False


def narrow(
    problem: Problem,
    run: Progress,
    raise_bound: Callable[[float], None],
    free: Choice,
    smallest: Choice,
    drawn: Sketch | None = None,
) -> float:
    """Offer the optimum to `run` and prove it by its bound, if it may be had; the best price.

    free: the choice of least cost, which exceeds the limit; smallest: one that fits
    drawn: where to begin
    """
    view = View(problem, [np.arange(len(c)) for c in problem.node_cost])
    dual = Dual(0.0, score_bound(problem, free, 0.0))
    near = max(_NEAR, run.budget.gap)
    if drawn is not None:
        dual = _approached(view, run, raise_bound, free, drawn, dual)
        if dual.bound >= run.budget.beat_s or run.is_good(dual.bound):
            return dual.price
        _priced(_likely(view, dual.price), run, free, smallest, _NEAR / 10)
        if run.is_good(dual.bound):
            return dual.price
        smaller = _dropped(view, run, dual.price, run.to_beat)
        if smaller is None:
            raise_bound(run.to_beat)
            return dual.price
        if smaller.size < view.size / 2:
            view, near = smaller, 0.0
    for _ in range(_ROUNDS):
        found = _priced(view, run, free, smallest, near)
        if found.bound > dual.bound:
            dual = found
        raise_bound(dual.bound)
        if run.is_good(dual.bound) or dual.bound >= run.budget.beat_s:
            return dual.price
        smaller = _dropped(view, run, dual.price, run.to_beat)
        if smaller is None:  # nothing can be better than the best
            raise_bound(run.to_beat)
            return dual.price
        done = near == 0.0 and smaller.size > _WORTH * view.size
        view, near = smaller, 0.0
        if run.best is not None:
            smallest = run.best
        if done:
            break
    if dual.bound < run.budget.useful_s:
        _close(view, run, raise_bound, dual)
    return dual.price


def _approached(
    view: View,
    run: Progress,
    raise_bound: Callable[[float], None],
    free: Choice,
    drawn: Sketch,
    dual: Dual,
) -> Dual:
    """A bound near the best cost: solutions of all strategies complete the sketch in turn."""
    near = max(5 * _NEAR, run.budget.gap)
    for _ in range(_SKETCHES):
        run.spend()
        price = drawn.price
        choice = view.original(view.eliminated(price).expand({}))
        run.offer(choice)
        found = Dual(price, min(score_bound(view.whole, choice, price), run.cost))
        raise_bound(found.bound)
        dual = max(dual, found, key=lambda d: d.bound)
        if dual.bound >= run.budget.beat_s or run.is_good(dual.bound, near):
            break
        drawn = drawn.with_choice(choice, run, free)
        if run.is_good(dual.bound, near) or drawn.price == price:
            break
    return dual


def _likely(view: View, price: float) -> View:
    """Of each table the strategies that solutions of the least scores use."""
    contexts = view.contexts(price)
    masks = []
    for table in range(len(view.kept)):
        through = contexts.through(table)
        last = np.sort(through)[min(_LIKELY_STRATEGIES, len(through)) - 1]
        masks.append(through <= last)
    return view.some(masks)


def _priced(view: View, run: Progress, free: Choice, smallest: Choice, near: float) -> Dual:
    """The best price on `view`, or one whose bound is as near as `near` to the best cost."""
    whole = view.whole

    def solve(price: float) -> Choice:
        run.spend()
        return view.original(view.eliminated(price).expand({}))

    sides: dict[bool, Choice] = {}  # the last choice that fits, and the last that does not

    def enough(choice: Choice, bound: float) -> bool:
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

    is_part = view.size < sum(map(len, whole.node_cost))
    if is_part:
        free = solve(0.0)
        if whole.evaluate(free)[1] <= whole.memory_limit:
            run.offer(free)
            return Dual(0.0, min(score_bound(whole, free, 0.0), run.to_beat))
    found = best_price(whole, solve, enough, free, smallest)
    return Dual(found.price, min(found.bound, run.to_beat if is_part else run.cost))


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
    """Search `view` by fronts below rising ceilings; by counts once these become long."""
    bound, gap, part = dual.bound, run.to_beat - dual.bound, _FIRST_CEILING
    counted, looked = False, 0
    near = run.budget.near
    is_near = relative_gap(run.cost, bound) <= near
    work = _QUICK_WORK if is_near else _SOME_WORK if near > 0 else _WORK
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
            most = work if is_long else min(work, _QUICK_WORK)
            try:
                found = _least(smaller.problem, run, dual.price, ceiling, most, is_long)
            except TooMany:
                if most < work:  # not as short as was hoped
                    looked = most
                    continue
                if not counted:
                    _count(alive, run, raise_bound, dual)
                return
            if found.choice is not None:  # the cheapest of all that cost less than the ceiling
                run.offer(smaller.original(found.choice))
                raise_bound(min(run.cost, ceiling) - _LOSS * ceiling)
                return
            raise_bound(ceiling - _LOSS * ceiling)
            looked = found.work
            if looked > _VERY_LONG and not counted:
                counted = True
                if _count(alive, run, raise_bound, dual):
                    return
        else:
            looked = 0
            raise_bound(ceiling)
        if ceiling == run.to_beat:
            return
        part *= _RISE if looked <= _QUICK_WORK else _SMALL_RISE
        work = max(work, _LITTLE_WORK)


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


def _count(view: View, run: Progress, raise_bound: Callable[[float], None], dual: Dual) -> bool:
    """Search `view` by an integer program; False if that is too large."""
    to_beat = run.to_beat
    smaller = _dropped(view, run, dual.price, to_beat)
    if smaller is None:
        raise_bound(to_beat)
        return True
    state, contexts = smaller.eliminated(dual.price), smaller.contexts(dual.price)
    found = least_by_counts(
        smaller.problem, state, contexts, dual.price, to_beat, _COLUMNS, _PROGRAM_NODES
    )
    if found is None:
        return False
    if found.choice is not None:
        run.offer(smaller.original(found.choice))
    raise_bound(min(found.bound, to_beat, run.cost))
    return True
