"""Exact search: elimination gives bounds, branching closes what they leave open.

Without a memory limit that binds, elimination alone finds the optimum (`eliminate`). If one does,
and elimination reaches every variable, `narrow` closes most gaps. For the rest the variables are
chosen in the reverse order of elimination. With those of a branch chosen, each of several
relaxations knows the least score of any completion exactly, as elimination left a table for it:

    at price 0             least cost, memory ignored
    at the best price p    least cost + p (memory - limit), see `dual`
    memory alone           least memory

A branch is left if a cost bound reaches the best cost so far, or its least memory the limit. The
search runs with rising ceilings on the cost: when it has gone through everything below a ceiling,
that is a lower bound. What elimination does not reach (more than two neighbours) is chosen first,
bounded by the least entries of its tables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .budget import Budget
from .descend import descend
from .dual import score_bound
from .eliminate import Elimination, eliminate
from .gap import ROUNDING
from .heuristics.coordinate_descent import descend_with_restarts
from .heuristics.random_choice import draw
from .narrow import narrow, sketch
from .problem import Choice, Problem, SearchResult, Table
from .progress import Progress

_CEILINGS = (1 / 16, 1 / 4, 1.0)  # of the way from the bound to the best cost
_DESCENTS = 4
_TREE_VARIABLES = 200  # a gap that fronts leave open in a larger problem, no tree closes


def exact(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """The optimum and its proof; when the budget ends, the best so far with a lower bound.

    None if no choice fits the memory limit (or none was found within the budget).
    """
    proof = Proof()
    with Progress(problem, budget) as run:
        prove(problem, rng, run, proof)
    return run.result("exact", proof.bound)


@dataclass
class Proof:
    """bound: no choice within the limit costs less; branches: of the search tree, 0 if none grew.

    is_complete: elimination reached every variable
    """

    bound: float = -math.inf
    branches: int = 0
    is_complete: bool = False

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)


def prove(problem: Problem, rng: np.random.Generator, run: Progress, proof: Proof) -> None:
    """Offer the optimum to `run` and prove it; `proof` is up to date at any time.

    Ends early, without a choice, when the bound shows that `beat_s` of the budget is out of reach.
    """
    free = _relax(problem, 0.0, run)
    proof.is_complete = free.is_complete
    relaxations = [free]
    if free.is_complete:
        choice = free.state.expand({})
        proof.raise_bound(score_bound(problem, choice, 0.0))
        if proof.bound >= run.budget.beat_s or run.offer(choice):
            return
    else:
        proof.raise_bound(free.root)
        for price in _trial_prices(problem):
            descend_with_restarts(problem, rng, run, price, frozenset())
    limited = problem.memory_limit < math.inf
    cheapest = free.state.expand({}) if free.is_complete else None
    drawn = sketch(problem, run, cheapest) if limited and cheapest is not None else None
    memory = None
    if limited and run.best is None:
        memory = _relax(_memory_only(problem), 0.0, run)
        if memory.root > problem.memory_limit * (1 + 2 * ROUNDING):
            return
        smallest = memory.state.expand_greedily()
        run.offer(smallest)
        run.offer(descend(problem, smallest, spend=run.check)[0])
    if limited and cheapest is not None and run.best is not None:
        if run.is_good(proof.bound):
            return
        price = narrow(problem, run, proof.raise_bound, cheapest, run.best, drawn)
        if run.is_good(proof.bound, max(run.budget.gap, run.budget.near)):
            return
        if problem.num_variables > _TREE_VARIABLES:
            return
        relaxations.append(_relax(problem, price, run))
    if proof.bound >= run.budget.beat_s or run.is_good(proof.bound):
        return
    if limited and memory is None:
        memory = _relax(_memory_only(problem), 0.0, run)
    for _ in range(_DESCENTS if run.best is None else 0):
        run.offer(descend(problem, draw(problem, rng), spend=run.spend)[0])
    tree = _Tree(problem, relaxations, memory, run, proof)
    low = proof.bound
    for part in _CEILINGS:
        ceiling = low + part * (run.cost - low) if math.isfinite(run.cost) else math.inf
        tree.search(ceiling)
        proof.raise_bound(min(ceiling, run.to_beat * (1 - 2 * ROUNDING)))
        if run.cost <= ceiling or run.is_good(proof.bound):
            return


def _trial_prices(problem: Problem) -> tuple[float, ...]:
    """Prices of memory worth a descent: none, and about the cost of all memory for the limit."""
    least, _ = problem.least()
    if problem.memory_limit == math.inf or not 0 < least < math.inf:
        return (0.0,)
    return tuple(least / problem.memory_limit * factor for factor in (0.0, 1.0, 100.0))


def _memory_only(problem: Problem) -> Problem:
    """The problem whose cost is this one's memory, without a limit."""
    return replace(
        problem,
        node_cost=problem.node_memory,
        edge_cost=problem.edge_memory,
        memory_limit=math.inf,
    )


@dataclass(frozen=True)
class _Relaxation:
    """An elimination as bounds on branches: value[d] is what d chosen variables cost at least.

    order: the variables that elimination left, then the eliminated ones, last first
    tables[d]: scores of variable order[d], and (earlier variable, scores [its, order[d]'s])
    rest[d]: least of what elimination left and is still open
    shift: to be added to a score to bound the cost
    """

    state: Elimination
    order: tuple[int, ...]
    tables: tuple[tuple[Table, tuple[tuple[int, Table], ...]], ...]
    rest: Table
    shift: float

    @property
    def is_complete(self) -> bool:
        """Whether elimination reached every variable."""
        return not self.state.node

    @property
    def root(self) -> float:
        """The lower bound before any choice."""
        value = self.state.constant + float(self.rest[0])
        return value - ROUNDING * abs(value) + self.shift

    def values(self, choice: Choice, depth: int, value: float) -> Table:
        """`value` with each strategy of order[depth] added."""
        scores, edges = self.tables[depth]
        for other, table in edges:
            scores = scores + table[choice[other]]
        if depth >= len(self.state.node):  # its best was counted when it was eliminated
            scores = scores - scores.min()
        return scores + value


def _relax(problem: Problem, price: float, run: Progress) -> _Relaxation:
    run.spend()
    state = eliminate(problem, price, frozenset())
    left = sorted(state.node)
    depth = {variable: d for d, variable in enumerate(left)}
    tables: list[tuple[Table, tuple[tuple[int, Table], ...]]] = []
    least = np.zeros(len(left) + 1)
    for d, variable in enumerate(left):
        earlier = tuple(
            (other, state.edges[other][variable])
            for other in sorted(state.edges[variable])
            if depth[other] < d
        )
        tables.append((state.node[variable], earlier))
        least[d] = state.node[variable].min() + sum(float(t.min()) for _, t in earlier)
    rest = np.zeros(problem.num_variables + 1)
    rest[: len(left) + 1] = np.cumsum(least[::-1])[::-1]
    order = [*left]
    for removal in reversed(state.order.removed):
        order.append(removal.variable)
        sides = tuple((other, state.tables[edge]) for other, edge in removal.neighbours)
        tables.append((state.tables[removal.node], sides))
    shift = -price * problem.memory_limit if price > 0 else 0.0
    return _Relaxation(state, tuple(order), tuple(tables), rest, shift)


@dataclass
class _Tree:
    """Depth-first search over the order that all relaxations share."""

    problem: Problem
    relaxations: list[_Relaxation]
    memory: _Relaxation | None
    run: Progress
    proof: Proof

    def __post_init__(self) -> None:
        self.order = self.relaxations[0].order
        every = [*self.relaxations, *([] if self.memory is None else [self.memory])]
        assert all(r.order == self.order for r in every)
        self.every = every

    def search(self, ceiling: float) -> None:
        """Offer every choice whose bound is below `ceiling` and that may be the best."""
        choice: Choice = np.zeros(len(self.order), dtype=np.int64)
        stack = [self._level(choice, 0, [r.state.constant for r in self.every])]
        while stack:
            depth, level = len(stack) - 1, stack[-1]
            if level.next == len(level.order) or not self._worth(level.bounds[level.next], ceiling):
                stack.pop()
                continue
            strategy = level.order[level.next]
            level.next += 1
            choice[self.order[depth]] = strategy
            if depth == len(self.order) - 1:
                self.run.offer(choice)
            else:
                values = [float(v[strategy]) for v in level.values]
                stack.append(self._level(choice, depth + 1, values))

    def _worth(self, bound: float, ceiling: float) -> bool:
        return bound < math.inf and bound <= ceiling and bound < self.run.to_beat * (1 - ROUNDING)

    def _level(self, choice: Choice, depth: int, before: list[float]) -> _Level:
        self.run.spend()
        self.proof.branches += 1
        values = [r.values(choice, depth, v) for r, v in zip(self.every, before, strict=True)]
        bounds = np.full(len(values[0]), -np.inf)
        for relaxation, value in zip(self.relaxations, values, strict=False):
            total = value + relaxation.rest[depth + 1]
            np.maximum(bounds, total - ROUNDING * np.abs(total) + relaxation.shift, out=bounds)
        if self.memory is not None:
            least = values[-1] + self.memory.rest[depth + 1]
            bounds[least > self.problem.memory_limit * (1 + 2 * ROUNDING)] = np.inf
        order = bounds.argsort(kind="stable")
        return _Level(order.tolist(), bounds[order].tolist(), values)


@dataclass
class _Level:
    """The strategies of one variable in ascending order of their bounds, and which comes next."""

    order: list[int]
    bounds: list[float]
    values: list[Table]
    next: int = 0
