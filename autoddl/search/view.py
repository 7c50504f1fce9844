"""A problem with some strategies of each node table, and good ones to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .eliminate import Elimination, eliminate
from .marginals import Contexts
from .problem import Choice, Problem, Table
from .prune import prune_tables

GOOD = 25  # strategies of each node table at each price


@dataclass
class View:
    """The problem with the strategies `kept` of each node table."""

    whole: Problem
    kept: list[NDArray[np.int64]]

    def __post_init__(self) -> None:
        self.problem = self.whole.restricted(self.kept)
        self._last: tuple[float, Elimination] | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.kept))

    def eliminated(self, price: float) -> Elimination:
        if self._last is None or self._last[0] != price:
            self._last = price, eliminate(self.problem, price, frozenset())
            self._contexts: Contexts | None = None
        return self._last[1]

    def contexts(self, price: float) -> Contexts:
        state = self.eliminated(price)
        if self._contexts is None:
            self._contexts = Contexts(state)
        return self._contexts

    def some(self, masks: Sequence[NDArray[np.bool_]]) -> View:
        return View(
            self.whole, [numbers[mask] for numbers, mask in zip(self.kept, masks, strict=True)]
        )

    def undominated(self) -> View:
        """The same optimum."""
        stay = prune_tables(self.problem)
        return View(self.whole, [n[k] for n, k in zip(self.kept, stay, strict=True)])

    def with_choice(self, choice: Choice) -> View:
        """The strategies of `choice` as well."""
        chosen: list[list[int]] = [[] for _ in self.kept]
        for table, strategy in dict.fromkeys(zip(self.whole.nodes, choice.tolist(), strict=True)):
            chosen[table].append(strategy)
        kept = zip(self.kept, chosen, strict=True)
        return View(self.whole, [np.union1d(n, np.array(own, dtype=np.int64)) for n, own in kept])

    def original(self, choice: Choice) -> Choice:
        return np.array(
            [self.kept[t][s] for t, s in zip(self.whole.nodes, choice, strict=True)],
            dtype=np.int64,
        )


def good_view(problem: Problem, prices: Sequence[float]) -> View:
    """The strategies of least scores at each price of memory."""
    chosen: list[set[int]] = [set() for _ in problem.node_cost]
    for price in prices:
        for table, scores in enumerate(_least_scores(problem, price)):
            chosen[table].update(scores.argsort(kind="stable")[:GOOD].tolist())
    return View(problem, [np.array(sorted(c), dtype=np.int64) for c in chosen])


def _least_scores(problem: Problem, price: float) -> list[Table]:
    """Scores of each node table's strategies, with the least of each of their edges."""
    nodes = [c + price * m for c, m in zip(problem.node_cost, problem.node_memory, strict=True)]
    known: dict[int, tuple[Table, Table]] = {}  # least scores of an edge table's rows and columns
    seen: set[tuple[int, int, bool]] = set()
    for edge in problem.edges:
        for variable, is_first in ((edge.first, True), (edge.second, False)):
            key = problem.nodes[variable], edge.table, is_first
            if key in seen:
                continue
            seen.add(key)
            if edge.table not in known:
                scores = problem.edge_cost[edge.table] + price * problem.edge_memory[edge.table]
                known[edge.table] = scores.min(axis=1), scores.min(axis=0)
            nodes[key[0]] = nodes[key[0]] + known[edge.table][0 if is_first else 1]
    return nodes
