"""The default search: what proves optimality if it may be had, else the best that was found.

Elimination reaches most networks whole, and branching closes the gap that a memory limit leaves
(`branch`). If that does not end within `_BRANCHES`, other searches look for a better choice:
eliminations at more prices of memory, or coordinate descent if elimination leaves variables over;
then the integer program, if it is small enough. The result's `algorithm` says which of them found
the choice, and its bound is the best of all.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .branch import Proof, prove
from .budget import Budget
from .eliminate import eliminate
from .heuristics.coordinate_descent import descend_with_restarts
from .integer import program_columns, solve_program
from .memory_price import within_memory
from .problem import Choice, Problem, SearchResult
from .progress import Progress
from .prune import prune

_BRANCHES = 4_000  # branches and line searches
_PROGRAM_COLUMNS = 3_000
_PROGRAM_NODES = 100


def auto(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """None if no choice fits the memory limit (or none was found within the budget)."""
    proof = Proof()
    name = "elimination"
    with Progress(problem, budget) as run:
        left = run.remaining
        with Progress(
            problem, dataclasses.replace(left, evaluations=min(left.evaluations, _BRANCHES))
        ) as inner:
            prove(problem, rng, inner, proof)
        run.adopt(inner)
        if proof.branches:
            name = "elimination+branching"
        if inner.end == "budget" and not run.is_over:
            name = _search_further(problem, rng, run, proof, name)
        else:
            run.end = inner.end
    if run.best is None and run.end == "budget":
        run.offer(_smallest(problem))
    return run.result(name, proof.bound)


def _smallest(problem: Problem) -> Choice:
    """A choice of about the least memory: what a budget too small for any other gives."""
    price = 1e6 / problem.memory_limit  # seconds a byte: memory outweighs any time
    return eliminate(problem, price, frozenset()).expand_greedily()


def _search_further(
    problem: Problem, rng: np.random.Generator, run: Progress, proof: Proof, name: str
) -> str:
    """Offer what other searches find, and raise the bound; the name of the one with the best."""
    complete = proof.is_complete

    def solve(price: float) -> tuple[Choice, int]:
        if not complete:
            return descend_with_restarts(problem, rng, run, price, frozenset())
        run.spend()
        choice = eliminate(problem, price, frozenset()).expand({})
        run.offer(choice)
        return choice, 1

    before = run.cost
    found = within_memory(problem, solve, name, complete)
    if found is not None:
        run.offer(found.choice)
        proof.raise_bound(found.lower_bound)
    if run.cost < before:
        name = "elimination at prices of memory" if complete else "coordinate_descent"
    smaller = prune(problem) if sum(problem.sizes()) <= _PROGRAM_COLUMNS else None
    if (
        smaller is not None
        and not run.is_good(proof.bound)
        and program_columns(smaller.problem) <= _PROGRAM_COLUMNS
    ):
        with Progress(
            problem,
            Budget(
                1,
                min(run.remaining.evaluations, _PROGRAM_NODES),
                run.remaining.seconds,
                gap=run.budget.gap,
                clock=run.budget.clock,
            ),
        ) as inner:
            bound = solve_program(smaller, inner)
            proof.raise_bound(bound)
        if inner.cost < run.cost:
            name = "integer"
        run.adopt(inner)
        if proof.bound == math.inf and run.best is not None:
            proof.bound = run.cost
    return name
