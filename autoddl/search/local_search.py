"""Better choices from known ones: coordinate descent from one, and one-point crossover of two.

`descend` changes one variable at a time under the hard memory limit. Equal variables beside equal
choices have the same strategies that cost less, which are looked up once: of equal blocks most are
alike, and most sweeps change little.

`crossover` joins two choices: the first variables as in one, the rest as in the other. At the best
price of memory a choice that fits and one that is too large score the same. Layers come in graph
order, so a choice that changes over from one to the other at layer k costs about the average of the
two in between, and some k fills the limit. Every k is tried, both ways.
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
    """Coordinate descent from `start` within the memory limit: (choice, line searches).

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
    """The change that brings a too large choice within the limit, or else nearer to it."""
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


def crossover(problem: Problem, first: Choice, second: Choice) -> Choice | None:
    """The cheapest joined choice that fits the memory limit; None if there is none."""
    best, found = np.inf, None
    for head, tail in ((first, second), (second, first)):
        cost, memory = prefix_totals(problem, head, tail)
        cost = np.where(memory <= problem.memory_limit * (1 - 1e-12), cost, np.inf)
        at = int(np.argmin(cost))
        if cost[at] < best:
            best, found = float(cost[at]), np.concatenate([head[:at], tail[at:]])
    return found
