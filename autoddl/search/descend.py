"""One coordinate descent under the hard memory limit, from a given start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .problem import Choice, Problem


def descend(
    problem: Problem,
    start: Choice,
    max_sweeps: int = 50,
    spend: Callable[[], None] | None = None,
) -> tuple[Choice, int]:
    """From `start` down to a fixed point under the hard memory limit; (choice, line searches).

    spend: called before each line search, may raise to end the descent
    """
    choice = start.copy()
    memory = problem.evaluate(choice)[1]
    searches = 0
    for _ in range(max_sweeps):
        changed = False
        for variable in range(problem.num_variables):
            if spend is not None:
                spend()
            cost, mem = problem.line(choice, variable)
            searches += 1
            now = choice[variable]
            total = memory + (mem - mem[now])
            allowed = total <= max(problem.memory_limit, 0.0)
            if allowed.any():
                best = int(np.argmin(np.where(allowed, cost, np.inf)))
                better = cost[best] < cost[now] * (1 - 1e-12) or not allowed[now]
            else:
                best = int(np.argmin(mem))
                better = mem[best] < mem[now]
            if better and best != now:
                memory += float(mem[best] - mem[now])
                choice[variable] = best
                changed = True
        if not changed:
            break
    return choice, searches
