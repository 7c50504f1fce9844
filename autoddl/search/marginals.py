"""The least score of a whole solution through each entry of each table: reduced costs.

Elimination computes the optimum f from the tables by sums and minima. Backwards through the same
operations runs, for every entry x of every table, its context

    context(x) = the least score of all the rest, of the solutions that use x,

so that table + context is the least score of a solution through x: as reverse-mode differentiation
with (min, +) in place of (+, *). For T[i, j] = min_s L[i, s] + v[s] + R[s, j] that is

    context_L[i, s] = min_j context_T[i, j] + R[s, j] + v[s]      and so on.

A table that several variables or edges share gets the least over all its uses. `contexts` costs
about twice as much as the elimination.
"""

from __future__ import annotations

import numpy as np

from .eliminate import Elimination, Products
from .problem import Table


class Contexts:
    """Context of each table of an elimination in which every variable disappeared.

    nodes_only: none of the problem's edge tables, which takes about half of the products
    """

    def __init__(self, state: Elimination, *, nodes_only: bool = False) -> None:
        assert not state.node, "variables are left"
        self._of: dict[int, Table] = {}
        self._wanted = {id(table) for table in state.nodes}
        for operation in state.tape:
            if any(id(table) in self._wanted for table in operation.args):
                self._wanted.add(id(operation.out))
        if not nodes_only:
            self._wanted |= {id(table) for op in state.tape for table in (op.out, *op.args)}
        products = Products()
        for root in state.roots:
            self._give(root, np.full(len(root), state.constant - root.min()))
        for operation in reversed(state.tape):
            context = self._of.get(id(operation.out))
            if context is None:
                continue
            args = operation.args
            if operation.kind == "transpose":
                self._give(args[0], context.T)
            elif operation.kind == "add":
                self._give(args[0], context + args[1])
                self._give(args[1], context + args[0])
            elif operation.kind == "absorb":
                node, edge, leaf = args
                self._give(node, context + (edge + leaf).min(axis=1))
                rest = (context + node)[:, None] + edge
                self._give(leaf, rest.min(axis=0))
                self._give(edge, (context + node)[:, None] + leaf)
            else:
                left, node, right = args
                turned = tuple(map(np.ascontiguousarray, (context.T, left.T, right.T)))
                context_t, left_t, right_t = turned
                wants_right = id(right) in self._wanted
                wants_left = id(left) in self._wanted or not wants_right  # one tells the node's
                if wants_left:
                    none = np.zeros(context.shape[1])
                    through = products.min_plus(context, none, right_t, context_t, right)
                    self._give(left, through + node)
                    self._give(node, (through + left).min(axis=0))
                if wants_right:
                    none = np.zeros(context.shape[0])
                    onward = products.min_plus(left_t, none, context, left, context_t)
                    self._give(right, onward + node[:, None])
                    if not wants_left:
                        self._give(node, (onward + right).min(axis=1))

    def _give(self, table: Table, context: Table) -> None:
        if id(table) not in self._wanted:
            return
        known = self._of.get(id(table))
        self._of[id(table)] = context if known is None else np.minimum(known, context)

    def of(self, table: Table) -> Table:
        """Context of each entry; inf for a table that no solution uses, or that is not wanted."""
        found = self._of.get(id(table))
        return np.full(table.shape, np.inf) if found is None else found

    def through(self, table: Table) -> Table:
        """The least score of a solution through each entry."""
        return table + self.of(table)
