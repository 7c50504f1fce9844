"""The optimum within the memory limit, of problems that elimination reaches whole.

1. The best price of memory p gives a lower bound, and choices on the way the best cost so far.
2. A choice within the limit that costs less than the best so far scores less than best + p limit.
   So a strategy goes unless some choice through it does (`marginals`): it cannot be in an optimum.
3. With the few strategies left, the best price again, and again.
4. What gap is left is closed exactly by elimination with fronts (`fronts`).

`narrow` offers what it finds and raises the bound of the proof, up to the optimum itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cost.gap import ROUNDING, relative_gap
from .crossing import crossing
from .descend import descend
from .dual import Dual, best_price, score_bound
from .eliminate import eliminate
from .fronts import TooMany, least_within
from .marginals import Contexts
from .problem import Choice, Problem
from .progress import Progress

_NEAR = 0.001  # relative gap from which on strategies are dropped
_WORK = 2_000_000  # pairs of cost and memory
_ROUNDS = 4
_CEILINGS = (
    1 / 16,
    1 / 8,
    1 / 4,
    3 / 8,
    1 / 2,
    5 / 8,
    3 / 4,
    7 / 8,
    1.0,
)  # of the way from the bound to the best cost
_WORTH = 0.9  # of the strategies: another round drops too few


@dataclass
class _View:
    """The problem with the strategies `kept` of each node table."""

    whole: Problem
    kept: list[NDArray[np.int64]]

    def __post_init__(self) -> None:
        self.problem = self.whole.restricted(self.kept)

    @property
    def size(self) -> int:
        return sum(map(len, self.kept))

    def original(self, choice: Choice) -> Choice:
        return np.array(
            [self.kept[t][s] for t, s in zip(self.whole.nodes, choice, strict=True)],
            dtype=np.int64,
        )


def narrow(
    problem: Problem,
    run: Progress,
    raise_bound: Callable[[float], None],
    free: Choice,
    smallest: Choice,
) -> float:
    """Offer the optimum to `run` and prove it by its bound, if it may be had; the best price.

    free: the choice of least cost, which exceeds the limit; smallest: of least memory, which fits
    """
    view = _View(problem, [np.arange(len(c)) for c in problem.node_cost])
    dual = Dual(0.0, score_bound(problem, free, 0.0))
    near = _NEAR
    for _ in range(_ROUNDS):
        found = _priced(view, run, free, smallest, near)
        if found.bound > dual.bound:
            dual = found
        raise_bound(dual.bound)
        if relative_gap(run.cost, dual.bound) == 0.0 or dual.bound >= run.budget.beat_s:
            return dual.price
        smaller = _dropped(view, run, dual.price, run.cost)
        if smaller is None:  # nothing can be better than the best
            raise_bound(run.cost)
            return dual.price
        done = near == 0.0 and smaller.size > _WORTH * view.size
        view, near = smaller, 0.0
        if run.best is not None:
            smallest = run.best
        if done:
            break
    _close(view, run, raise_bound, dual)
    return dual.price


def _priced(view: _View, run: Progress, free: Choice, smallest: Choice, near: float) -> Dual:
    """The best price on `view`, or one whose bound is as near as `near` to the best cost."""
    whole = view.whole

    def solve(price: float) -> Choice:
        run.spend()
        return view.original(eliminate(view.problem, price, frozenset()).expand({}))

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
                run.offer(descend(whole, candidate, spend=lambda: run.spend(0))[0])
        return bound >= run.budget.beat_s or relative_gap(run.cost, bound) <= near

    if view.size < sum(map(len, whole.node_cost)):
        free = solve(0.0)
        if whole.evaluate(free)[1] <= whole.memory_limit:
            run.offer(free)
            return Dual(0.0, min(score_bound(whole, free, 0.0), run.cost))
    found = best_price(whole, solve, enough, free, smallest)
    return Dual(found.price, min(found.bound, run.cost))


def _dropped(view: _View, run: Progress, price: float, cost: float) -> _View | None:
    """`view` without the strategies of which nothing that costs less than `cost` can be made."""
    run.spend()
    state = eliminate(view.problem, price, frozenset())
    contexts = Contexts(state)
    ceiling = cost + price * view.whole.memory_limit
    ceiling += ROUNDING * abs(ceiling)
    kept = [
        numbers[contexts.through(table) <= ceiling]
        for numbers, table in zip(view.kept, state.nodes, strict=True)
    ]
    used = set(view.whole.nodes)
    if any(not len(numbers) for table, numbers in enumerate(kept) if table in used):
        return None
    return _View(view.whole, kept)


def _close(view: _View, run: Progress, raise_bound: Callable[[float], None], dual: Dual) -> None:
    """Search `view` by fronts below rising ceilings, until these become too long."""
    gap = run.cost - dual.bound
    for part in _CEILINGS:
        ceiling = dual.bound + part * gap
        smaller = _dropped(view, run, dual.price, ceiling)
        if smaller is not None:
            state = eliminate(smaller.problem, dual.price, frozenset())
            contexts = Contexts(state)
            try:
                choice = least_within(smaller.problem, state, contexts, dual.price, ceiling, _WORK)
            except TooMany:
                return
            if choice is not None:  # the cheapest of all that cost less than the ceiling
                run.offer(smaller.original(choice))
                raise_bound(run.cost)
                return
        raise_bound(ceiling)
