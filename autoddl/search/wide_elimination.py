"""Elimination of the few variables of more than two neighbours that `eliminate` leaves over.

A variable with neighbours a, b, ... disappears into one table over all of them,

    T[s_a, s_b, ...] = min_s ( sum of all tables that mention it ),

whose size is the product of their numbers of strategies (bucket elimination; R. Dechter, 1999). The
variable that leaves the smallest table goes first. It is exact, but feasible only while the tables
stay small: small meshes, or a few crossing branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .eliminate import Elimination
from .problem import Choice, Table

# Sums of table entries in all, a second of one core. A mixture of experts' layer on four devices
# needs 3e7, four crossing products of 256 strategies 1.4e9, a DenseNet on 16 devices 1e14.
_MOST_SUMS = 2e9
_MOST_ENTRIES = 2e7


@dataclass(frozen=True)
class _Factor:
    """A table over some variables, in ascending order, one dim each."""

    variables: tuple[int, ...]
    table: Table

    def over(self, variables: Sequence[int]) -> Table:
        """The table with a dim for each of `variables`, of length one where it has none."""
        shape = dict(zip(self.variables, self.table.shape, strict=True))
        return self.table.reshape([shape.get(v, 1) for v in variables])

    def at(self, variable: int, strategy: int) -> _Factor:
        """What is left with one variable's strategy chosen."""
        axis = self.variables.index(variable)
        rest = (*self.variables[:axis], *self.variables[axis + 1 :])
        return _Factor(rest, np.asarray(self.table.take(strategy, axis=axis)))


def best_choice(state: Elimination) -> Choice | None:
    """The choice of least score of all variables; None if the tables would become too large."""
    if not state.node:
        return state.expand({})
    order = _order(state)
    if order is None:
        return None
    factors = [_Factor((variable,), table) for variable, table in state.node.items()]
    for variable, edges in state.edges.items():
        pairs = ((other, table) for other, table in edges.items() if variable < other)
        factors += [_Factor((variable, other), table) for other, table in pairs]
    buckets: list[tuple[int, list[_Factor]]] = []
    for variable in order:
        own = [factor for factor in factors if variable in factor.variables]
        factors = [factor for factor in factors if variable not in factor.variables]
        buckets.append((variable, own))
        factors.append(_eliminated(variable, own))
    chosen: dict[int, int] = {}
    for variable, own in reversed(buckets):
        scores = np.zeros(len(state.node[variable]))
        for factor in own:
            for other in factor.variables:
                if other != variable:
                    factor = factor.at(other, chosen[other])
            scores = scores + factor.table
        chosen[variable] = int(scores.argmin())
    return state.expand(chosen)


def _eliminated(variable: int, own: Sequence[_Factor]) -> _Factor:
    """The least over the variable's strategies of the sum of its tables, one after the other."""
    rest = tuple(sorted({v for factor in own for v in factor.variables} - {variable}))
    axis = next(factor for factor in own if factor.variables == (variable,))
    least: Table | None = None
    for strategy in range(len(axis.table)):
        total = np.zeros([1] * len(rest))
        for factor in own:
            total = total + factor.at(variable, strategy).over(rest)
        least = total if least is None else np.minimum(least, total)
    assert least is not None
    return _Factor(rest, least)


def _order(state: Elimination) -> list[int] | None:
    """Variables in the order of the smallest tables; None if one is too large."""
    sizes = {variable: len(scores) for variable, scores in state.node.items()}
    near = {variable: set(others) for variable, others in state.edges.items()}
    order, sums = [], 0.0
    while near:
        entries = {v: math.prod(float(sizes[w]) for w in others) for v, others in near.items()}
        variable = min(near, key=lambda v: (entries[v], v))
        others = near.pop(variable)
        sums += entries[variable] * sizes[variable]
        if entries[variable] > _MOST_ENTRIES or sums > _MOST_SUMS:
            return None
        for other in others:
            near[other] |= others - {other}
            near[other].discard(variable)
        order.append(variable)
    return order
