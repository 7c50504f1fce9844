"""The least score of a whole solution through each entry of each table: reduced costs.

Elimination computes the optimum f from the tables by sums and minima. Backwards through the same
operations runs, for every entry x of every table, its context

    context(x) = the least score of all the rest, of the solutions that use x,

so that table + context is the least score of a solution through x: as reverse-mode differentiation
with (min, +) in place of (+, *). For T[i, j] = min_s L[i, s] + v[s] + R[s, j] that is

    context_L[i, s] = min_j context_T[i, j] + R[s, j] + v[s]      and so on.

A table that several variables or edges share gets the least over all its uses. `ReducedCosts` takes
about twice as long as the elimination.

No choice that costs less than some ceiling has a strategy of which the least score is higher:
`Restricted.below` leaves these out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .budget import Progress
from .elimination import Elimination, eliminate, min_plus
from .messages import Messages, Solved, solve
from .problem import ROUNDING, Choice, Problem, Table


class ReducedCosts:
    """Context of each table of an elimination.

    Where it left variables over, contexts are bounds, from the messages among these.

    messages:   between the variables that are left
    nodes_only: none of the problem's edge tables, which takes about half of the products
    """

    def __init__(
        self, state: Elimination, messages: Messages | None = None, *, nodes_only: bool = False
    ) -> None:
        assert messages is not None or not state.node, "variables are left"
        self._tables = state.tables
        self._of: dict[int, Table] = {}  # by slot
        order = state.order
        self._wanted = set(range(order.sizes[0] if nodes_only else order.slots))
        for step in order.steps:
            if not self._wanted.isdisjoint(step.args):
                self._wanted.add(step.out)
        bound, through = (0.0, iter(())) if messages is None else messages.through()
        for slot, scores in through:
            table = state.tables[slot]
            possible = np.isfinite(table)
            others = np.subtract(scores, table, where=possible, out=np.full(table.shape, np.inf))
            self._give(slot, state.constant + others)
        for root in order.roots:
            table = state.tables[root]
            self._give(root, np.full(len(table), state.constant + bound - table.min()))
        for step in reversed(order.steps):
            context = self._of.get(step.out)
            if context is None:
                continue
            tables = [state.tables[slot] for slot in step.args]
            if step.kind == "transpose":
                self._give(step.args[0], context.T)
            elif step.kind == "add":
                first, second = step.args
                self._give(first, context + tables[1])
                self._give(second, context + tables[0])
            elif step.kind == "absorb":
                node, edge, leaf = tables
                for_node, for_edge, for_leaf = step.args
                self._give(for_node, context + (edge + leaf).min(axis=1))
                rest = (context + node)[:, None] + edge
                self._give(for_leaf, rest.min(axis=0))
                self._give(for_edge, (context + node)[:, None] + leaf)
            else:
                left, node, right = tables
                for_left, for_node, for_right = step.args
                wants_right = for_right in self._wanted
                wants_left = for_left in self._wanted or not wants_right  # one tells the node's
                if wants_left:
                    through = min_plus(context, np.zeros(context.shape[1]), right.T)
                    self._give(for_left, through + node)
                    self._give(for_node, (through + left).min(axis=0))
                if wants_right:
                    onward = min_plus(left.T, np.zeros(context.shape[0]), context)
                    self._give(for_right, onward + node[:, None])
                    if not wants_left:
                        self._give(for_node, (onward + right).min(axis=1))

    def _give(self, slot: int, context: Table) -> None:
        if slot not in self._wanted:
            return
        known = self._of.get(slot)
        self._of[slot] = context if known is None else np.minimum(known, context)

    def of(self, slot: int) -> Table:
        """Context of each entry; inf for a table that no solution uses, or that is not wanted."""
        found = self._of.get(slot)
        return np.full(self._tables[slot].shape, np.inf) if found is None else found

    def through(self, slot: int) -> Table:
        """The least score of a solution through each entry."""
        return self._tables[slot] + self.of(slot)


@dataclass
class Restricted:
    """The problem with the strategies `kept` of each node table.

    ceiling: every choice of the whole problem that costs less is one of these
    price:   of memory that may be about the best one, if it is not 0
    """

    whole: Problem
    kept: list[NDArray[np.int64]]
    ceiling: float = math.inf
    price: float = 0.0

    def __post_init__(self) -> None:
        self.problem = self.whole.restricted(self.kept)
        self._last: tuple[float, Solved] | None = None

    @staticmethod
    def of(problem: Problem) -> Restricted:
        """With all strategies."""
        return Restricted(problem, [np.arange(len(cost)) for cost in problem.node_cost])

    @property
    def size(self) -> int:
        """Number of strategies."""
        return sum(map(len, self.kept))

    def solved(self, price: float, run: Progress) -> Solved:
        """The best choice at a price that is found; the last one is remembered."""
        if self._last is None or self._last[0] != price:
            state = eliminate(self.problem, price, frozenset())
            self._last = price, solve(state, run.spend)
        return self._last[1]

    def among(self, chosen: Sequence[NDArray[np.int64] | NDArray[np.bool_]]) -> Restricted:
        """With these of its strategies only."""
        kept = [numbers[own] for numbers, own in zip(self.kept, chosen, strict=True)]
        return Restricted(self.whole, kept, self.ceiling, self.price)

    def below(self, price: float, cost: float, run: Progress) -> Restricted | None:
        """Without the strategies of which nothing that costs less than `cost` can be made.

        None if nothing can; the bound of the run is then raised to that.
        """
        run.spend()
        solved = self.solved(price, run)
        reduced = ReducedCosts(solved.state, solved.messages)
        most = cost + (price * self.whole.memory_limit if price else 0.0)  # the limit may be inf
        most += ROUNDING * abs(most)
        masks = [reduced.through(table) <= most for table in range(len(self.kept))]
        if any(not masks[table].any() for table in set(self.whole.nodes)):
            run.raise_bound(min(cost, self.ceiling))
            return None
        return replace(self.among(masks), ceiling=min(cost, self.ceiling))

    def original(self, choice: Choice) -> Choice:
        """A choice of the smaller problem in the numbers of the whole one."""
        pairs = zip(self.whole.nodes, choice, strict=True)
        return np.array([self.kept[table][s] for table, s in pairs], dtype=np.int64)
