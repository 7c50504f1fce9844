"""Exact elimination of variables with at most two neighbours, by min-plus algebra.

A variable v between a and b disappears into an edge table

    T[s_a, s_b] = min_s ( node_v[s] + edge_av[s_a, s] + edge_vb[s, s_b] )

which is added to the edge between a and b; with one neighbour into its node table, with none into a
constant. Chains, residual blocks and attention are series-parallel, so whole networks reduce to a
constant. In what order, and which products are equal, `removals` says before any number is known.

`eliminate` does the forward part, `Elimination.expand` chooses the eliminated variables backwards.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .problem import Choice, Problem, Table
from .removals import Kind, program

_BLOCK_ROWS = 16
_SMALL = 200_000  # additions that one array may hold
_WORTH_THREADS = 4_000_000  # additions


def min_plus(left: Table, node: Table, right: Table) -> Table:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j].

    In single precision, which halves the time, of what exceeds the least entries, so that what is
    optimal is hardly rounded; the choice that follows from it is evaluated in double.
    """
    weighted = left + node
    least = _finite(weighted.min(initial=np.inf)) + _finite(right.min(initial=np.inf))
    weighted = (weighted - _finite(weighted.min(initial=np.inf))).astype(np.float32)
    turned = (right.T - _finite(right.min(initial=np.inf))).astype(np.float32, order="C")
    rows, columns = len(weighted), len(turned)
    if rows * turned.size < _SMALL:
        return (weighted[:, None, :] + turned).min(axis=2, initial=np.inf) + least
    result = np.empty((rows, columns), dtype=np.float32)

    def fill(start: int) -> None:
        sums = np.empty_like(turned)
        for row in range(start, min(start + _BLOCK_ROWS, rows)):
            np.add(turned, weighted[row], out=sums)
            sums.min(axis=1, out=result[row])

    starts = range(0, rows, _BLOCK_ROWS)
    if rows * turned.size < _WORTH_THREADS:
        for start in starts:
            fill(start)
    else:  # NumPy computes without the interpreter's lock; each thread fills rows of its own
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, starts))
    return result + least


def _finite(number: float) -> float:
    return float(number) if np.isfinite(number) else 0.0


@dataclass(frozen=True)
class Classes:
    """Which rows of a table are equal: `first` [k] of each class, `of` each row its class."""

    first: NDArray[np.int64]
    of: NDArray[np.int64]

    def least(self, table: Table) -> Table:
        """[k, ...]: the least row of each class."""
        order = np.argsort(self.of, kind="stable")
        starts = np.searchsorted(self.of[order], np.arange(len(self.first)))
        return np.minimum.reduceat(table[order], starts, axis=0)


def equal_rows(table: Table) -> Classes:
    """The classes of equal rows."""
    rows = np.ascontiguousarray(table + 0.0)  # no minus zero, whose bytes differ
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, of = np.unique(keys, return_index=True, return_inverse=True)
    return Classes(first, of.ravel())


@dataclass(frozen=True)
class Operation:
    """How a table came about, see `removals.Making`; every table is known by identity."""

    kind: Kind
    out: Table
    args: tuple[Table, ...]


@dataclass
class Products:
    """Min-plus products on the distinct rows and columns; small tensors have few placements."""

    _classes: dict[int, tuple[Table, Classes]] = field(default_factory=dict)

    def min_plus(
        self, left: Table, node: Table, right: Table, left_t: Table, right_t: Table
    ) -> Table:
        """`min_plus`; the tables that end in _t are the transposes."""
        if left.size * right.shape[1] < _SMALL:
            return min_plus(left, node, right)
        outer, columns = self._equal(left), self._equal(right_t)
        inner, other = self._equal(right), self._equal(left_t)
        left, right = left[outer.first], right[:, columns.first]
        if len(inner.first) <= len(other.first):
            left, right = inner.least((left + node).T).T, right[inner.first]
        else:
            left, right = left[:, other.first], other.least(node[:, None] + right)
        small = min_plus(left, np.zeros(len(right)), right)
        return small[outer.of[:, None], columns.of]

    def _equal(self, table: Table) -> Classes:
        found = self._classes.get(id(table))
        if found is None:  # the table is kept as well, as its identity counts
            found = self._classes[id(table)] = table, equal_rows(table)
        return found[1]


@dataclass(frozen=True)
class Removal:
    """A variable with its scores, and its neighbours with the edges [neighbour's, its own].

    With one neighbour `before` are that one's scores until then; with two, of the first and second,
    `made` is what the variable leaves between them and `before` the edge that was there, if any.
    """

    variable: int
    node: Table
    neighbours: tuple[tuple[int, Table], ...]
    before: Table | None = None
    made: Table | None = None


@dataclass
class Elimination:
    """The problem after elimination, on scores = cost + price * memory.

    node:      remaining variable -> scores
    edges:     remaining variable -> neighbour -> scores [variable's, neighbour's]
    constant:  score of the components that disappeared whole
    products:  number of products that were computed
    removed:   in the order of removal
    pairs:     scores of the problem's edge tables; nodes: of its node tables
    tape:      how the other tables came about, in order
    roots:     the scores of the last variable of each component
    """

    num_variables: int
    node: dict[int, Table]
    edges: dict[int, dict[int, Table]]
    constant: float = 0.0
    products: int = 0
    removed: list[Removal] = field(default_factory=list)
    nodes: list[Table] = field(default_factory=list)
    pairs: list[Table] = field(default_factory=list)
    tape: list[Operation] = field(default_factory=list)
    roots: list[Table] = field(default_factory=list)

    def expand_greedily(self) -> Choice:
        """`expand` with each remaining variable at the best of its own scores."""
        return self.expand({v: int(np.argmin(scores)) for v, scores in self.node.items()})

    def expand(self, chosen: dict[int, int]) -> Choice:
        """The best choice of all variables given that of the remaining ones."""
        choice = [-1] * self.num_variables
        known: dict[tuple[int, ...], int] = {}  # equal removals choose alike
        for variable, strategy in chosen.items():
            choice[variable] = strategy
        for removal in reversed(self.removed):
            asked = [id(removal.node)]
            for other, edge in removal.neighbours:
                asked += id(edge), choice[other]
            key = tuple(asked)
            if key not in known:
                score = removal.node
                for other, edge in removal.neighbours:
                    score = score + edge[choice[other]]
                known[key] = int(score.argmin())
            choice[removal.variable] = known[key]
        assert min(choice, default=0) >= 0
        return np.array(choice, dtype=np.int64)


def eliminate(problem: Problem, memory_price: float, keep: frozenset[int]) -> Elimination:
    """Remove every variable outside `keep` that has, or comes to have, at most two neighbours.

    memory_price: seconds per byte that a unit of memory is charged (a Lagrange multiplier).
    """
    nodes = [
        c + memory_price * m for c, m in zip(problem.node_cost, problem.node_memory, strict=True)
    ]
    pairs = [
        c + memory_price * m for c, m in zip(problem.edge_cost, problem.edge_memory, strict=True)
    ]
    order = program(problem.nodes, problem.edges, (len(nodes), len(pairs)), keep)
    tables: dict[int, Table] = dict(enumerate([*nodes, *pairs]))
    turned: dict[int, int] = {}
    products = Products()

    def transposed(slot: int) -> Table:
        other = turned.get(slot)
        return tables[slot].T if other is None else tables[other]

    tape = []
    for making in order.makings:
        args = tuple(tables[slot] for slot in making.args)
        if making.kind == "transpose":
            out = np.ascontiguousarray(args[0].T)
            turned[making.out], turned[making.args[0]] = making.args[0], making.out
        elif making.kind == "add":
            out = args[0] + args[1]
        elif making.kind == "absorb":
            node, edge, leaf = args
            out = node + (edge + leaf).min(axis=1)
        else:
            left, _, right = making.args
            out = products.min_plus(args[0], args[1], args[2], transposed(left), transposed(right))
        tables[making.out] = out
        tape.append(Operation(making.kind, out, args))
    roots = [tables[slot] for slot in order.roots]
    constant = 0.0
    for root in roots:
        constant += float(root.min())
    return Elimination(
        problem.num_variables,
        {v: tables[slot] for v, slot in order.node.items()},
        {v: {o: tables[slot] for o, slot in to.items()} for v, to in order.edges.items()},
        constant,
        order.products,
        [
            Removal(
                step.variable,
                tables[step.node],
                tuple((other, tables[slot]) for other, slot in step.neighbours),
                None if step.before is None else tables[step.before],
                None if step.made is None else tables[step.made],
            )
            for step in order.removed
        ],
        nodes,
        pairs,
        tape,
        roots,
    )
