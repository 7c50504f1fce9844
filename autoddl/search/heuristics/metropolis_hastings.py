"""Metropolis-Hastings, AutoDDL section 4.4.

Choices are sampled with probability

    P(S) = exp(-beta cost(S)) / Z

A proposal S* changes the strategy of one variable, all equally likely, and is accepted with
probability

    min(1, P(S*) / P(S)) = min(1, exp(beta (cost(S) - cost(S*)))).

The paper leaves the constant to the user. Costs here range from microseconds to seconds, so it is
given relative to the problem: beta = `BETA` / (the least that any choice could cost). Above the
memory limit a chain goes wherever memory falls; within the limit it never leaves it.
"""

from __future__ import annotations

import math

import numpy as np

from ..budget import Budget, Progress
from ..problem import Choice, Problem, SearchResult, draw

# A proposal that costs 0.5 % of the least cost more is accepted once in e times. 100 and 400 gave
# the same plans of a small GPT on 2x2 and of AlexNet on 2x8.
BETA = 200.0
# Half gave the same plans of a small GPT on 2x2 and of AlexNet on 2x8, in 0.7 of the time; twice
# too, in 1.7 to 2 times as long.
_STEPS_PER_VARIABLE = 100


def acceptance(beta: float, cost: float, proposed: float) -> float:
    """Probability of going from a choice that costs `cost` to one that costs `proposed`."""
    return 1.0 if proposed <= cost else math.exp(beta * (cost - proposed))


def metropolis_hastings(
    problem: Problem, rng: np.random.Generator, budget: Budget, restarts: int = 32
) -> SearchResult | None:
    """`restarts` chains of 100 proposals a variable; a finite budget is used up instead.

    None if no chain came within the memory limit.
    """
    with Progress(problem, budget) as run:
        least, _ = problem.least()
        beta = BETA / least if 0 < least < math.inf else 0.0
        chains = 0
        while budget.is_finite or chains < restarts:
            _chain(problem, rng, run, beta)
            chains += 1
    return run.result("metropolis_hastings")


def _chain(problem: Problem, rng: np.random.Generator, run: Progress, beta: float) -> None:
    """One chain from a random choice."""
    run.spend()
    choice, sizes = draw(problem, rng), problem.sizes()
    cost, memory = problem.evaluate(choice)
    run.offer_priced(choice, cost, memory)
    variables = [v for v, size in enumerate(sizes) if size > 1]
    for _ in range(_STEPS_PER_VARIABLE * len(variables)):
        run.spend()
        variable = variables[rng.integers(len(variables))]
        strategy = int(rng.integers(sizes[variable]))
        proposed_cost, proposed_memory = _moved(problem, choice, cost, memory, variable, strategy)
        if memory > problem.memory_limit:
            accepted = proposed_memory < memory
        else:
            accepted = proposed_memory <= problem.memory_limit and (
                rng.random() < acceptance(beta, cost, proposed_cost)
            )
        if accepted:
            choice[variable] = strategy
            cost, memory = proposed_cost, proposed_memory
            if cost < run.cost and memory <= problem.memory_limit:
                cost, memory = problem.evaluate(choice)  # sums of differences drift
                run.offer_priced(choice, cost, memory)


def _moved(
    problem: Problem, choice: Choice, cost: float, memory: float, variable: int, strategy: int
) -> tuple[float, float]:
    """(cost, memory) of `choice`, which has the given ones, with another strategy."""
    if math.isinf(cost):
        other = choice.copy()
        other[variable] = strategy
        return problem.evaluate(other)
    costs, memories = problem.line(choice, variable)
    now = choice[variable]
    return cost + float(costs[strategy] - costs[now]), memory + float(
        memories[strategy] - memories[now]
    )
