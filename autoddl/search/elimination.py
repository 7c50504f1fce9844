"""Exact elimination of variables with at most two neighbours, by min-plus algebra.

A variable v between a and b disappears into an edge table

    T[s_a, s_b] = min_s ( node_v[s] + edge_av[s_a, s] + edge_vb[s, s_b] )

which is added to the edge between a and b; with one neighbour into its node table, with none into a
constant. Chains, residual blocks and attention are series-parallel, so whole networks reduce to a
constant. In what order, and which products are equal, `elimination_order` says before any number is
known. `eliminate` does the forward part, `Elimination.expand` chooses backwards.

A variable of more than two neighbours a, b, ... disappears into one table over all of them,

    T[s_a, s_b, ...] = min_s ( sum of all tables that mention it ),

whose size is the product of their numbers of strategies (bucket elimination; R. Dechter, 1999). It
is feasible only while the tables stay small, on small meshes or for a few crossing branches:
`best_choice` does it for what `eliminate` leaves over, and `free_bound` bounds what it cannot do.

The min-plus products of tables,

    T[i, j] = min_s ( left[i, s] + node[s] + right[s, j] ),

are in single precision, which halves the time, of what exceeds the least entries, so that what is
optimal is hardly rounded; the choice that follows from it is evaluated in double. A minimum of sums
is the same in whatever order they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._native.library import loops
from .elimination_order import Program, along_chains, program
from .problem import ROUNDING, Choice, Problem, Table

Single = NDArray[np.float32]
_CHUNK = 250_000  # additions on arrays at once


def min_plus(left: Table, node: Table, right: Table) -> Single:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j]."""
    compiled = loops()
    return (
        on_arrays(left, node, right) if compiled is None else compiled.min_plus(left, node, right)
    )


def on_arrays(left: Table, node: Table, right: Table) -> Single:
    weighted = left + node.astype(np.float64)
    least, other = _least(weighted), _least(right)
    above = (weighted - least).astype(np.float32, order="C")
    onward = (right.astype(np.float64) - other).astype(np.float32, order="C")
    result = np.empty((len(left), right.shape[1]), dtype=np.float32)
    rows = max(1, _CHUNK // max(1, right.size))
    turned = above.T[:, :, None]
    for low in range(0, len(left), rows):
        sums = turned[:, low : low + rows] + onward[:, None, :]
        sums.min(axis=0, initial=np.inf, out=result[low : low + rows])
    return result + np.float32(least + other)


def _least(table: Table) -> float:
    least = float(table.min(initial=np.inf))
    return least if np.isfinite(least) else 0.0


# Sums of table entries in all. A GPT with one layer of experts on four devices needs 1e8 (0.1 s), a
# Res2Net or a PVT on 16 devices 4e10, a DenseNet there 1e56.
_MOST_SUMS = 2e9
_MOST_ENTRIES = 2e7  # of one table: 160 MB


@dataclass(frozen=True)
class Elimination:
    """The problem after elimination, on scores = cost + price * memory.

    order:    what came from what; the slots of the problem's node tables come first, then those of
              its edge tables
    tables:   by slot
    constant: score of the components that disappeared whole
    """

    num_variables: int
    order: Program
    tables: Sequence[Table]
    constant: float

    @cached_property
    def node(self) -> dict[int, Table]:
        """Remaining variable -> scores."""
        return {variable: self.tables[slot] for variable, slot in self.order.node.items()}

    @cached_property
    def edges(self) -> dict[int, dict[int, Table]]:
        """Remaining variable -> neighbour -> scores [variable's, neighbour's]."""
        return {
            variable: {other: self.tables[slot] for other, slot in to.items()}
            for variable, to in self.order.edges.items()
        }

    def expand_greedily(self) -> Choice:
        """`expand` with each remaining variable at the best of its own scores."""
        return self.expand({v: int(np.argmin(scores)) for v, scores in self.node.items()})

    def expand(self, chosen: dict[int, int]) -> Choice:
        """The best choice of all variables given that of the remaining ones."""
        choice = [-1] * self.num_variables
        known: dict[tuple[int, int, int], int] = {}  # equal removals choose alike
        for variable, strategy in chosen.items():
            choice[variable] = strategy
        for removal, alike, first, second in self.order.backwards:
            key = alike, choice[first], choice[second]
            if key not in known:
                score = self.tables[removal.node]
                for other, edge in removal.neighbours:
                    score = score + self.tables[edge][choice[other]]
                known[key] = int(score.argmin())
            choice[removal.variable] = known[key]
        assert min(choice, default=0) >= 0
        return np.array(choice, dtype=np.int64)


def eliminate(problem: Problem, memory_price: float, keep: frozenset[int]) -> Elimination:
    """Remove every variable outside `keep` that has, or comes to have, at most two neighbours.

    memory_price: seconds per byte that a unit of memory is charged (a Lagrange multiplier); inf:
                  scores are the bytes alone of what is possible
    """
    sizes = len(problem.node_cost), len(problem.edge_cost)
    order = program(problem.nodes, problem.edges, sizes, keep)
    return eliminated(problem, memory_price, order)


def eliminated(problem: Problem, memory_price: float, order: Program) -> Elimination:
    """`elimination` in an order of the problem's variables."""
    costs = [*problem.node_cost, *problem.edge_cost]
    memories = [*problem.node_memory, *problem.edge_memory]
    tables: list[Table] = []
    for cost, memory in zip(costs, memories, strict=True):
        if memory_price == math.inf:
            tables.append(np.where(np.isfinite(cost), memory, np.inf))
        else:
            tables.append(cost + memory_price * memory)
    for step in order.steps:
        args = [tables[slot] for slot in step.args]
        if step.kind == "transpose":
            out = np.ascontiguousarray(args[0].T)
        elif step.kind == "add":
            out = args[0] + args[1]
        elif step.kind == "absorb":
            node, edge, leaf = args
            out = node + (edge + leaf).min(axis=1)
        else:
            out = min_plus(*args)
        assert step.out == len(tables), "tables are made in the order of their slots"
        tables.append(out)
    constant = 0.0
    for root in order.roots:
        constant += float(tables[root].min())
    return Elimination(problem.num_variables, order, tables, constant)


def eliminated_along_chains(problem: Problem, memory_price: float) -> Elimination:
    """`eliminate` of every variable, in the order that suits Pareto sets."""
    sizes = len(problem.node_cost), len(problem.edge_cost)
    return eliminated(problem, memory_price, along_chains(problem.nodes, problem.edges, sizes))


def free_bound(problem: Problem) -> float:
    """No choice costs less than this, whatever its memory.

    Where elimination leaves variables over, the least entries of the remaining tables bound these.
    """
    state = eliminate(problem, 0.0, frozenset())
    bound = state.constant + sum(float(scores.min()) for scores in state.node.values())
    for variable, edges in state.edges.items():
        bound += sum(float(table.min()) for other, table in edges.items() if variable < other)
    return bound - ROUNDING * abs(bound)


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

    def given(self, chosen: Mapping[int, int]) -> _Factor:
        """What is left with those of its variables chosen that have a strategy there."""
        factor = self
        for variable in self.variables:
            if variable in chosen:
                factor = factor.at(variable, chosen[variable])
        return factor


def best_choice(state: Elimination) -> Choice | None:
    """The choice of least score of all variables; None if the tables would become too large."""
    if not state.node:
        return state.expand({})
    order = _order(state)
    if order is None:
        return None
    # NumPy has tables of 32 dims at most: those of one strategy are none
    chosen = {variable: 0 for variable, scores in state.node.items() if len(scores) == 1}
    factors = [_Factor((variable,), table) for variable, table in state.node.items()]
    for variable, edges in state.edges.items():
        pairs = ((other, table) for other, table in edges.items() if variable < other)
        factors += [_Factor((variable, other), table) for other, table in pairs]
    factors = [factor.given(chosen) for factor in factors]
    buckets: list[tuple[int, list[_Factor]]] = []
    for variable in order:
        own = [factor for factor in factors if variable in factor.variables]
        factors = [factor for factor in factors if variable not in factor.variables]
        buckets.append((variable, own))
        factors.append(_eliminated(variable, own))
    for variable, own in reversed(buckets):
        scores = np.zeros(len(state.node[variable]))
        for factor in own:
            scores = scores + factor.given(chosen).table
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
    """Variables of several strategies, the smallest tables first; None if one is too large."""
    sizes = {v: len(scores) for v, scores in state.node.items() if len(scores) > 1}
    near = {v: sizes.keys() & others for v, others in state.edges.items() if v in sizes}
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
