"""The least score of a whole solution through each entry of each table: reduced costs.

Elimination computes the optimum f from the tables by sums and minima. Backwards through the same
operations runs, for every entry x of every table, its context

    context(x) = the least score of all the rest, of the solutions that use x,

so that table + context is the least score of a solution through x: as reverse-mode differentiation
with (min, +) in place of (+, *). For T[i, j] = min_s L[i, s] + v[s] + R[s, j] that is

    context_L[i, s] = min_j context_T[i, j] + R[s, j] + v[s]      and so on.

A table that several variables or edges share gets the least over all its uses. `ReducedCosts` takes
about twice as long as the elimination.
"""

from __future__ import annotations

import numpy as np

from .elimination import Elimination, min_plus
from .messages import Messages
from .problem import Table


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
