"""The default search: what proves optimality if it may be had, else the best that was found.

Elimination reaches most networks whole, and then `exact` does all. Where it leaves variables over,
coordinate descent at more prices of memory looks for a better choice, and the integer program
decides if it is small. The result's `algorithm` says which of them found the choice, and its bound
is the best of all.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .budget import Budget
from .eliminate import eliminate
from .exact import Proof, prove, solve_if_small
from .heuristics.coordinate_descent import descend_with_restarts
from .memory_price import within_memory
from .problem import Choice, Problem, SearchResult
from .progress import Progress

_EVALUATIONS = 4_000  # of the first descents, where elimination leaves variables over
_PROGRAM_COLUMNS = 3_000
_PROGRAM_NODES = 100


def auto(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """None if no choice fits the memory limit (or none was found within the budget)."""
    proof = Proof()
    name = "elimination"
    with Progress(problem, budget) as run:
        with Progress(problem, _within(run, _EVALUATIONS)) as inner:
            prove(problem, rng, inner, proof)
        run.adopt(inner)
        is_done = proof.is_complete or proof.bound == math.inf or run.is_good(proof.bound)
        if is_done or run.is_over or inner.end == "interrupted":
            run.end = inner.end
        else:
            name = _search_further(problem, rng, run, proof, name)
    if run.best is None and run.end == "budget":
        run.offer(_smallest(problem))
    return run.result(name, proof.bound)


def _within(run: Progress, evaluations: int) -> Budget:
    """What is left of the budget, and at most so many evaluations."""
    left = run.remaining
    return dataclasses.replace(left, evaluations=min(left.evaluations, evaluations))


def _smallest(problem: Problem) -> Choice:
    """A choice of about the least memory: what a budget too small for any other gives."""
    price = 1e6 / problem.memory_limit  # seconds a byte: memory outweighs any time
    return eliminate(problem, price, frozenset()).expand_greedily()


def _search_further(
    problem: Problem, rng: np.random.Generator, run: Progress, proof: Proof, name: str
) -> str:
    """Offer what other searches find, and raise the bound; the name of the one with the best."""

    def solve(price: float) -> tuple[Choice, int]:
        return descend_with_restarts(problem, rng, run, price, frozenset())

    before = run.cost
    found = within_memory(problem, solve, name, False)
    if found is not None:
        run.offer(found.choice)
    if run.cost < before:
        name = "coordinate_descent"
    if not run.is_good(proof.bound):
        with Progress(problem, _within(run, _PROGRAM_NODES)) as inner:
            solve_if_small(problem, inner, proof, _PROGRAM_COLUMNS)
        if inner.cost < run.cost:
            name = "integer"
        run.adopt(inner)
        if run.best is not None:
            proof.bound = min(proof.bound, run.cost)
    return name
