"""A good choice within a lowered memory limit, near one that was optimal within a higher one.

What was proven for the higher limit bounds the lower one too, so nothing is proven again: few
strategies, those of the choice among them, give the price of memory; one solution of all strategies
at that price says which others are needed.
"""

from __future__ import annotations

import dataclasses

from .budget import Budget
from .eliminate import eliminate, reaches_all
from .narrow import sketch
from .problem import Problem, SearchResult
from .progress import Progress


def tighten(problem: Problem, result: SearchResult, budget: Budget) -> SearchResult | None:
    """The choice found within `problem`'s limit, with the bound of `result`; None if there is none.

    problem: one that elimination reaches whole
    result: of the same problem with a higher limit
    """
    assert reaches_all(problem)
    with Progress(problem, budget) as run:
        run.spend()
        drawn = sketch(problem, run, result.choice)
        if drawn is not None:
            drawn = drawn.with_choice(result.choice, run, result.choice)
            run.spend()
            choice = eliminate(problem, drawn.price, frozenset()).expand({})
            run.offer(choice)
            drawn.with_choice(choice, run, result.choice)
    found = run.result(result.algorithm, result.lower_bound, result.free_cost)
    return None if found is None else dataclasses.replace(found, end=result.end)
