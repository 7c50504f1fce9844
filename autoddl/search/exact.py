"""Exact search: elimination gives bounds, and `narrow` closes what a memory limit leaves open.

Without a memory limit that binds, elimination alone finds the optimum (`eliminate`). If one does,
and elimination reaches every variable, `narrow` finds it. A few variables of more than two
neighbours that elimination leaves over disappear into larger tables (`wide_elimination`). Where
these would be too large, the least entries of what is left are a bound, descents at a few prices of
memory give good choices, and an integer program decides if it is small enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .budget import Budget
from .certify import free_bound
from .eliminate import eliminate
from .heuristics.coordinate_descent import descend_with_restarts
from .integer import program_columns, solve_program
from .lagrangian import score_bound
from .narrow import narrow
from .problem import Problem, SearchResult
from .progress import Progress
from .prune import prune
from .wide_elimination import best_choice

_MOST_COLUMNS = 200_000  # a mixture of two experts' layers has 120,000 and takes 9 s


def exact(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """The optimum and its proof; when the budget ends, the best so far with a lower bound.

    None if no choice fits the memory limit (or none was found within the budget).
    """
    proof = Proof()
    with Progress(problem, budget) as run:
        prove(problem, rng, run, proof)
        is_done = proof.is_complete or proof.bound == math.inf or run.is_good(proof.bound)
        if not is_done:
            solve_if_small(problem, run, proof, _MOST_COLUMNS)
    return run.result("exact", proof.bound)


@dataclass
class Proof:
    """bound: no choice within the limit costs less.

    is_complete: elimination reached every variable
    """

    bound: float = -math.inf
    is_complete: bool = False

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)


def prove(problem: Problem, rng: np.random.Generator, run: Progress, proof: Proof) -> None:
    """Offer the optimum to `run` and prove it; `proof` is up to date at any time.

    Where elimination leaves variables over it offers good choices, and proves a bound.
    Ends early, without a choice, when the bound shows that `beat_s` of the budget is out of reach.
    """
    run.spend()
    state = eliminate(problem, 0.0, frozenset())
    proof.is_complete = not state.node
    free = best_choice(state)
    if free is None:
        proof.raise_bound(free_bound(problem))
        for price in _trial_prices(problem):
            descend_with_restarts(problem, rng, run, price, frozenset())
        return
    proof.raise_bound(score_bound(problem, free, 0.0))
    if proof.bound >= run.budget.beat_s or run.offer(free):
        return
    narrow(problem, run, proof.raise_bound, free)


def solve_if_small(problem: Problem, run: Progress, proof: Proof, columns: int) -> None:
    """Solve the integer program of a problem if it has no more than so many columns."""
    if sum(problem.sizes()) > columns:
        return
    smaller = prune(problem)
    if program_columns(smaller.problem) > columns:
        return
    proof.raise_bound(solve_program(smaller, run))
    if proof.bound == math.inf and run.best is not None:
        proof.bound = run.cost


def _trial_prices(problem: Problem) -> tuple[float, ...]:
    """Prices of memory worth a descent: none, and about the cost of all memory for the limit."""
    least, _ = problem.least()
    if problem.memory_limit == math.inf or not 0 < least < math.inf:
        return (0.0,)
    return tuple(least / problem.memory_limit * factor for factor in (0.0, 1.0, 100.0))
