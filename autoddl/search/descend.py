"""One coordinate descent under the hard memory limit, from a given start.

Equal variables beside equal choices have the same strategies that cost less, which are looked up
once: of equal blocks most are alike, and most sweeps change little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .problem import Choice, Problem, Table

_LESS = 1 - 1e-12  # times what a strategy costs: what another must cost to be better


def descend(
    problem: Problem,
    start: Choice,
    max_sweeps: int = 50,
    spend: Callable[[], None] | None = None,
) -> tuple[Choice, int]:
    """From `start` down to a fixed point under the hard memory limit; (choice, line searches).

    spend: called before each line search, may raise to end the descent
    """
    choice: list[int] = start.tolist()
    memory = problem.evaluate(start)[1]
    limit = max(problem.memory_limit, 0.0)
    known: dict[tuple[int, ...], _Cheaper | None] = {}
    searches = 0
    for _ in range(max_sweeps):
        changed = False
        for variable in range(problem.num_variables):
            if spend is not None:
                spend()
            searches += 1
            if memory <= limit:
                key = _key(problem, choice, variable)
                if key not in known:
                    known[key] = _Cheaper.of(problem, choice, variable)
                cheaper = known[key]
                step = None if cheaper is None else cheaper.best(limit, memory)
            else:
                step = _towards_limit(problem, choice, variable, limit, memory)
            if step is not None:
                choice[variable] = step[0]
                memory += step[1]
                changed = True
        if not changed:
            break
    return np.array(choice, dtype=np.int64), searches


def _key(problem: Problem, choice: Sequence[int], variable: int) -> tuple[int, ...]:
    """What decides the line of a variable, and where on it the variable is."""
    key = [problem.nodes[variable], choice[variable]]
    for other, edge, is_first in problem.neighbours[variable]:
        key += (edge if is_first else ~edge), choice[other]
    return tuple(key)


@dataclass(frozen=True)
class _Cheaper:
    """Strategies of a variable that cost less than its own, and how many bytes more they hold."""

    strategies: NDArray[np.int64]
    cost: Table
    more: Table

    @staticmethod
    def of(problem: Problem, choice: Sequence[int], variable: int) -> _Cheaper | None:
        """None if there are none."""
        cost, memory = problem.line(choice, variable)
        now = choice[variable]
        cost = np.asarray(cost, dtype=np.float64)
        less = np.flatnonzero(cost < cost[now] * _LESS)
        return _Cheaper(less, cost[less], memory[less] - memory[now]) if len(less) else None

    def best(self, limit: float, memory: float) -> tuple[int, float] | None:
        """The cheapest that keeps to the limit, and its bytes more; None if none does."""
        allowed = memory + self.more <= limit
        if not allowed.any():
            return None
        at = int(np.argmin(np.where(allowed, self.cost, np.inf)))
        return int(self.strategies[at]), float(self.more[at])


def _towards_limit(
    problem: Problem, choice: Sequence[int], variable: int, limit: float, memory: float
) -> tuple[int, float] | None:
    """Of a choice that exceeds the limit: what reaches it, or at least needs fewer bytes."""
    cost, own = problem.line(choice, variable)
    more = own - own[choice[variable]]
    allowed = memory + more <= limit
    if allowed.any():
        best = int(np.argmin(np.where(allowed, cost, np.inf)))
    else:
        best = int(np.argmin(own))
        if not own[best] < own[choice[variable]]:
            return None
    return best, float(more[best])
