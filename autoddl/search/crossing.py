"""Two choices joined: the first variables as in one, the rest as in the other.

At the best price of memory a choice that fits and one that is too large score the same. Layers come
in graph order, so a choice that changes over from one to the other at layer k costs about the
average of the two in between, and some k fills the limit. `crossing` tries every k, both ways.
"""

from __future__ import annotations

import numpy as np

from .problem import Choice, Problem, Table


def prefix_totals(problem: Problem, head: Choice, tail: Choice) -> tuple[Table, Table]:
    """(cost, memory) [variables + 1] of the choices that take `head` for the first k variables."""
    size = problem.num_variables
    ends = np.array([(edge.first, edge.second) for edge in problem.edges], dtype=np.int64)
    low, high = ends.reshape(-1, 2).T
    # of what k on each term counts: those of the tail from the start, what the head changes later
    variables = np.stack([np.zeros(size, dtype=np.int64), np.arange(size) + 1], axis=1)
    between = np.stack([np.zeros_like(low), low + 1, high + 1], axis=1)
    start = np.concatenate([variables.ravel(), between.ravel()])
    totals = []
    for tails, heads, mixed in zip(
        problem.terms(tail, tail, tail),
        problem.terms(head, head, head),
        problem.terms(tail, head, tail),
        strict=True,
    ):
        nodes = np.stack([tails[:size], heads[:size] - tails[:size]], axis=1).ravel()
        tails, heads, mixed = tails[size:], heads[size:], mixed[size:]
        edges = np.stack([tails, mixed - tails, heads - mixed], axis=1).ravel()
        steps = np.bincount(start, np.concatenate([nodes, edges]), minlength=size + 2)
        totals.append(np.cumsum(steps[: size + 1]))
    return totals[0], totals[1]


def crossing(problem: Problem, first: Choice, second: Choice) -> Choice | None:
    """The cheapest joined choice that fits the memory limit; None if there is none."""
    best, found = np.inf, None
    for head, tail in ((first, second), (second, first)):
        cost, memory = prefix_totals(problem, head, tail)
        cost = np.where(memory <= problem.memory_limit * (1 - 1e-12), cost, np.inf)
        at = int(np.argmin(cost))
        if cost[at] < best:
            best, found = float(cost[at]), np.concatenate([head[:at], tail[at:]])
    return found
