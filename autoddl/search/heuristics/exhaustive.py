"""Exhaustive search: depth first over all choices, cut off by partial cost (AutoDDL section 4.4).

The variables are chosen one after the other, each time the cheapest strategy first. With the first
d of them chosen, a branch is left as soon as

    cost of what is chosen + rest[d] >= best so far,

where rest[d] is the sum of the least entries of all tables of what is open, which no completion
falls below; and likewise if its memory plus the least open memory exceeds the limit. Dominated
strategies are removed first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..budget import Budget, Progress
from ..dominance import prune
from ..problem import Choice, Problem, SearchResult, Table
from ..reduced_costs import Restricted

# Without a limit of its own, a search of more choices than this is not begun.
_LARGEST_SPACE = 1e40


def exhaustive(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """The optimum, proven by enumeration, or the best so far when the budget ends.

    None if no choice fits the memory limit (or none was found within the budget). Raises ValueError
    if the space is far too large and the budget unlimited.
    """
    del rng
    with Progress(problem, budget) as run:
        smaller = Restricted.of(problem).among(prune(problem))
        space = math.prod(float(size) for size in smaller.problem.sizes())
        if space > _LARGEST_SPACE and not budget.is_finite:
            raise ValueError(
                f"an exhaustive search of {space:.0e} choices does not end; give a budget in "
                "seconds or evaluations, or use the algorithm 'auto'"
            )
        ordered = Ordered.of(smaller.problem, search_order(smaller.problem))
        enumerate_all(ordered, run, smaller.original)
        run.raise_bound(run.to_beat)
    return run.result("exhaustive")


def search_order(problem: Problem) -> list[int]:
    """Variables so that each has as many chosen neighbours as possible; the fewest open first."""
    order: list[int] = []
    chosen: set[int] = set()
    while len(order) < problem.num_variables:

        def rank(variable: int) -> tuple[int, int, int]:
            others = {other for other, _, _ in problem.neighbours[variable]}
            return -len(others & chosen), len(others - chosen), variable

        following = min((v for v in range(problem.num_variables) if v not in chosen), key=rank)
        order.append(following)
        chosen.add(following)
    return order


@dataclass(frozen=True)
class Ordered:
    """The problem's tables in the order of the search.

    back[d]: (earlier variable, cost, memory) of the edges to it, tables [its, the d-th's strategy]
    rest[d]: least (cost, memory) of what is open when d variables are chosen
    """

    problem: Problem
    order: tuple[int, ...]
    back: tuple[tuple[tuple[int, Table, Table], ...], ...]
    rest: Table

    @staticmethod
    def of(problem: Problem, order: list[int]) -> Ordered:
        depth = {variable: d for d, variable in enumerate(order)}
        back: list[tuple[tuple[int, Table, Table], ...]] = []
        least = np.zeros((len(order) + 1, 2))
        for d, variable in enumerate(order):
            table = problem.nodes[variable]
            least[d] += problem.node_cost[table].min(), problem.node_memory[table].min()
            edges = []
            for other, edge, is_first in problem.neighbours[variable]:
                if depth[other] < d:
                    cost, memory = problem.edge_cost[edge], problem.edge_memory[edge]
                    least[d] += cost.min(), memory.min()
                    edges.append((other, cost.T, memory.T) if is_first else (other, cost, memory))
            back.append(tuple(edges))
        return Ordered(problem, tuple(order), tuple(back), np.cumsum(least[::-1], axis=0)[::-1])

    def partial(
        self, choice: Choice, depth: int, cost: float, memory: float
    ) -> tuple[Table, Table]:
        """(cost, memory) of the first `depth` + 1 variables, for each strategy of the last."""
        table = self.problem.nodes[self.order[depth]]
        costs = self.problem.node_cost[table] + cost
        memories = self.problem.node_memory[table] + memory
        for other, edge_cost, edge_memory in self.back[depth]:
            costs += edge_cost[choice[other]]
            memories += edge_memory[choice[other]]
        return costs, memories


def enumerate_all(ordered: Ordered, run: Progress, original: Callable[[Choice], Choice]) -> None:
    """Offer every choice that no bound excludes, depth first."""
    limit = ordered.problem.memory_limit
    choice: Choice = np.zeros(ordered.problem.num_variables, dtype=np.int64)
    last = len(ordered.order) - 1
    stack: list[_Level] = []

    def descend(cost: float, memory: float) -> None:
        run.spend()
        depth = len(stack)
        costs, memories = ordered.partial(choice, depth, cost, memory)
        fits = memories + ordered.rest[depth + 1, 1] <= limit * (1 + 1e-12)
        costs = np.where(fits, costs, np.inf)
        ascending = costs.argsort(kind="stable")
        stack.append(_Level(ascending.tolist(), costs[ascending].tolist(), memories.tolist()))

    descend(0.0, 0.0)
    while stack:
        level = stack[-1]
        depth = len(stack) - 1
        following = level.next
        if following == len(level.order) or (
            level.costs[following] + ordered.rest[depth + 1, 0] >= run.to_beat
            or level.costs[following] == np.inf
        ):
            stack.pop()
            continue
        level.next += 1
        strategy = level.order[following]
        choice[ordered.order[depth]] = strategy
        if depth == last:
            run.offer(original(choice))
        else:
            descend(level.costs[following], level.memories[strategy])


@dataclass
class _Level:
    """The strategies of one variable in ascending order of cost, and which comes next."""

    order: list[int]
    costs: list[float]
    memories: list[float]
    next: int = 0
