"""Exact elimination of variables with at most two neighbours, by min-plus algebra.

A variable v between a and b disappears into an edge table

    T[s_a, s_b] = min_s ( node_v[s] + edge_av[s_a, s] + edge_vb[s, s_b] )

which is added to the edge between a and b; with one neighbour into its node table, with none into a
constant. Chains, residual blocks and attention are series-parallel, so whole networks reduce to a
constant. In what order, and which products are equal, `elimination_order` says before any number is
known. `eliminate` does the forward part, `Elimination.expand` chooses backwards.

`below` finds backwards all choices of which several scores are below a ceiling, by branch and bound
(Land and Doig 1960): of what has been chosen of some variables goes on what has no

    bound_k(chosen) = least_k + sum over chosen v of (score_k(v | chosen before) - its least)

that reaches it, the least of score k over all that can come of it, as the tables have what a
variable and those that disappeared into it cost at least, given those chosen before.

The min-plus products of tables,

    T[i, j] = min_s ( left[i, s] + node[s] + right[s, j] ),

are in single precision, which halves the time, of what exceeds the least entries, so that what is
optimal is hardly rounded; the choice that follows from it is evaluated in double. A minimum of sums
is the same in whatever order they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
            out = args[0].T  # a view: half of them no product reads, and one reads any order
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


@dataclass(frozen=True)
class Choices:
    """Choices of some variables, and what can come of them.

    choices: [choices, variables]; scores: [choices, bounds], the least of all that can come of each
    least:   none that was left out has all its scores below this
    """

    choices: NDArray[np.int64]
    scores: NDArray[np.float64]
    least: float

    @property
    def greatest(self) -> NDArray[np.float64]:
        """Of each choice."""
        return self.scores.max(axis=1)

    @property
    def bound(self) -> float:
        """No choice at all has all its scores below this."""
        return min(self.least, float(self.greatest.min(initial=math.inf))) * (1 - ROUNDING)

    def lowest(self, most: int) -> Choices:
        """So many of them at most."""
        if len(self.choices) <= most:
            return self
        greatest = self.greatest
        order = np.argsort(greatest, kind="stable")
        keep, least = order[:most], min(self.least, float(greatest[order[most]]))
        return Choices(self.choices[keep], self.scores[keep], least)


def below(bounds: Sequence[Elimination], ceiling: float, most: int) -> Choices:
    """The choices of which no score reaches the ceiling.

    bounds: of problems that differ in their costs alone, and leave no variable
    most:   choices that go on; where there are more, the lowest do
    """
    assert not any(bound.node for bound in bounds), "variables are left"
    choices = np.zeros((1, bounds[0].num_variables), dtype=np.int64)
    left = Choices(choices, np.array([[bound.constant for bound in bounds]]), ceiling)
    for steps in zip(*(bound.order.backwards for bound in bounds), strict=True):
        further: list[Table] = []  # of each bound [choices, strategies]
        for number, (bound, (removal, *_)) in enumerate(zip(bounds, steps, strict=True)):
            own = bound.tables[removal.node][None, :]
            for other, edge in removal.neighbours:
                own = own + bound.tables[edge][left.choices[:, other]]
            further.append(left.scores[:, number, None] + own - own.min(axis=1, keepdims=True))
        scores = np.stack(further, axis=2)
        chosen, strategies = np.nonzero(scores.max(axis=2) < ceiling)
        choices = left.choices[chosen]
        choices[:, steps[0][0].variable] = strategies
        left = Choices(choices, scores[chosen, strategies], left.least).lowest(most)
    return left


def eliminated_along_chains(problem: Problem, memory_price: float) -> Elimination:
    """`eliminate` of every variable, in the order that suits Pareto sets."""
    sizes = len(problem.node_cost), len(problem.edge_cost)
    return eliminated(problem, memory_price, along_chains(problem.nodes, problem.edges, sizes))
