"""The best price of memory where an elimination takes long: few strategies first.

Among few strategies the largest L of `dual` is no less than among all of them, so it bounds the
largest L of all from above. All strategies at its price bound it from below, and their best choice
is what the few lack; with that one among them, and again, both bounds meet. (Column generation, G.
Dantzig and P. Wolfe, 1960.) Mostly the first price will do; where a bound is asked only whether it
is high enough, the price of a similar problem often does.
"""

from __future__ import annotations

import math

from .dual import Dual, bracketed_price, score_bound
from .eliminate import eliminate
from .problem import Choice, Problem
from .view import View, good_view

_PRICES = (0.1, 1.0, 10.0)  # times the cost for the whole limit
_SHARE = 0.25  # of `near`, among few strategies
_ROUNDS = 8


def price_by_few(problem: Problem, free: Choice, start: Dual, enough: float, near: float) -> Dual:
    """The best price, near enough, of a problem that elimination reaches whole; inf: nothing fits.

    The arguments are those of `dual.bracketed_price`.
    """
    cost, memory = problem.evaluate(free)
    best = max(start, Dual(0.0, score_bound(problem, free, 0.0)), key=lambda d: d.bound)
    if memory <= problem.memory_limit or best.bound >= enough:
        return best
    if start.price > 0.0 and enough < math.inf:
        best = max(best, _of_all(problem, start.price)[0], key=lambda d: d.bound)
        if best.bound >= enough:
            return best
    unit = cost / problem.memory_limit
    view = good_view(problem, [unit * factor for factor in _PRICES]).with_choice(free)
    price = start.price
    for _ in range(_ROUNDS):
        few = _of_few(view, price, enough * (1 + near), near * _SHARE)
        price = few.price
        found, choice = _of_all(problem, price)
        if few.bound == math.inf and problem.evaluate(choice)[1] > problem.memory_limit:
            return few
        best = max(best, found, key=lambda d: d.bound)
        if best.bound >= enough or few.bound <= best.bound * (1 + near):
            break
        view = view.with_choice(choice)
    return best


def _of_all(problem: Problem, price: float) -> tuple[Dual, Choice]:
    """The bound at that price, and the choice of least score."""
    choice = eliminate(problem, price, frozenset()).expand({})
    return Dual(price, score_bound(problem, choice, price)), choice


def _of_few(view: View, price: float, enough: float, near: float) -> Dual:
    """The best price of a view; price: where to begin, if it is not 0."""

    def solve(price: float) -> Choice:
        return view.eliminated(price).expand({})

    return bracketed_price(view.problem, solve, solve(0.0), Dual(price, -math.inf), enough, near)
