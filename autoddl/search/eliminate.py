"""Exact elimination of variables with at most two neighbours, by min-plus algebra.

A variable v between a and b disappears into an edge table

    T[s_a, s_b] = min_s ( node_v[s] + edge_av[s_a, s] + edge_vb[s, s_b] )

which is added to the edge between a and b; with one neighbour into its node table, with none into a
constant. Chains, residual blocks and attention are series-parallel, so whole networks reduce to a
constant. Equal tables are recognised by identity and every product is computed once: variables
disappear in rounds of non-neighbours, so that a chain of equal blocks costs the logarithm of its
length.

`eliminate` does the forward part, `Elimination.expand` chooses the eliminated variables backwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .problem import Choice, Problem, Table

_BLOCK_ROWS = 16
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
    """How a table came about: by `kind` from `args`; every table is known by identity.

    transpose (edge); add (edge, edge); absorb (node, edge, leaf): node[i] + min_s (edge[i, s] +
    leaf[s]); product (left, node, right).
    """

    kind: Literal["transpose", "add", "absorb", "product"]
    out: Table
    args: tuple[Table, ...]


@dataclass
class _Tables:
    """Arithmetic on tables with every result computed once, and written down in order."""

    memo: dict[Hashable, Table] = field(default_factory=dict)
    classes: dict[int, Classes] = field(default_factory=dict)
    tape: list[Operation] = field(default_factory=list)  # keeps the tables, whose identities count

    def _once(
        self,
        kind: Literal["transpose", "add", "absorb", "product"],
        compute: Callable[..., Table],
        *args: Table,
    ) -> Table:
        key = (kind, *map(id, args))
        found = self.memo.get(key)
        if found is None:
            found = compute(*args)
            self.memo[key] = found
            self.tape.append(Operation(kind, found, args))
        return found

    def transpose(self, table: Table) -> Table:
        turned = self._once("transpose", lambda t: np.ascontiguousarray(t.T), table)
        self.memo.setdefault(("transpose", id(turned)), table)
        return turned

    def add(self, first: Table, second: Table) -> Table:
        return self._once("add", lambda a, b: a + b, first, second)

    def absorb(self, node: Table, edge: Table, leaf: Table) -> Table:
        return self._once("absorb", lambda n, e, v: n + (e + v).min(axis=1), node, edge, leaf)

    def product(self, left: Table, node: Table, right: Table) -> Table:
        return self._once("product", self.min_plus, left, node, right)

    def min_plus(self, left: Table, node: Table, right: Table) -> Table:
        """`min_plus` on the distinct rows and columns; small tensors have few placements."""
        outer, columns = self._equal(left), self._equal(self.transpose(right))
        inner, other = self._equal(right), self._equal(self.transpose(left))
        left, right = left[outer.first], right[:, columns.first]
        if len(inner.first) <= len(other.first):
            left, right = inner.least((left + node).T).T, right[inner.first]
        else:
            left, right = left[:, other.first], other.least(node[:, None] + right)
        small = min_plus(left, np.zeros(len(right)), right)
        return small[outer.of[:, None], columns.of]

    def _equal(self, table: Table) -> Classes:
        found = self.classes.get(id(table))
        if found is None:
            found = equal_rows(table)
            self.classes[id(table)] = found
        return found


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
        choice = np.full(self.num_variables, -1, dtype=np.int64)
        for variable, strategy in chosen.items():
            choice[variable] = strategy
        for removal in reversed(self.removed):
            score = removal.node
            for other, edge in removal.neighbours:
                score = score + edge[choice[other]]
            choice[removal.variable] = int(np.argmin(score))
        assert (choice >= 0).all()
        return choice


def eliminate(problem: Problem, memory_price: float, keep: frozenset[int]) -> Elimination:
    """Remove every variable outside `keep` that has, or comes to have, at most two neighbours.

    memory_price: seconds per byte that a unit of memory is charged (a Lagrange multiplier).
    """
    tables = _Tables()
    nodes = [
        c + memory_price * m for c, m in zip(problem.node_cost, problem.node_memory, strict=True)
    ]
    pairs = [
        c + memory_price * m for c, m in zip(problem.edge_cost, problem.edge_memory, strict=True)
    ]
    state = Elimination(
        problem.num_variables,
        {v: nodes[t] for v, t in enumerate(problem.nodes)},
        {v: {} for v in range(problem.num_variables)},
        nodes=nodes,
        pairs=pairs,
        tape=tables.tape,
    )
    for edge in problem.edges:
        _connect(state, tables, edge.first, edge.second, pairs[edge.table])
    while True:
        blocked: set[int] = set()
        ready = sorted(
            (v for v in state.node if v not in keep and len(state.edges[v]) <= 2),
            key=lambda v: (len(state.edges[v]), v),
        )
        for variable in ready:
            if variable not in blocked and len(state.edges[variable]) <= 2:
                blocked.update(state.edges[variable])
                _remove(state, tables, variable)
        if not ready:
            return state


def _connect(state: Elimination, tables: _Tables, first: int, second: int, table: Table) -> None:
    present = state.edges[first].get(second)
    if present is not None:
        table = tables.add(present, table)
    state.edges[first][second] = table
    state.edges[second][first] = tables.transpose(table)


def _remove(state: Elimination, tables: _Tables, variable: int) -> None:
    node = state.node.pop(variable)
    neighbours = sorted(state.edges.pop(variable).items())
    towards = tuple((other, state.edges[other].pop(variable)) for other, _ in neighbours)
    before, made = None, None
    if not neighbours:
        state.constant += float(node.min())
        state.roots.append(node)
    elif len(neighbours) == 1:
        other, edge = towards[0]
        before = state.node[other]
        state.node[other] = tables.absorb(before, edge, node)
    else:
        (first, left), (second, _) = towards
        known = len(tables.tape)
        before = state.edges[first].get(second)
        made = tables.product(left, node, neighbours[1][1])
        state.products += len(tables.tape) > known
        _connect(state, tables, first, second, made)
    state.removed.append(Removal(variable, node, towards, before, made))
