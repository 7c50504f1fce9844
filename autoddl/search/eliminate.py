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
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from .problem import Choice, Problem, Table

_CHUNK_ELEMENTS = 1_000_000
_WORTH_THREADS = 8  # chunks


def min_plus(left: Table, node: Table, right: Table) -> Table:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j].

    In single precision, which halves the time; the choice that follows from it is evaluated in
    double.
    """
    weighted = (left + node).astype(np.float32)
    rows, inner = weighted.shape
    turned = np.ascontiguousarray(right.T, dtype=np.float32)
    columns = len(turned)
    result = np.empty((rows, columns), dtype=np.float32)
    step = max(1, _CHUNK_ELEMENTS // max(1, inner * columns))

    def fill(start: int) -> None:
        block = weighted[start : start + step, None, :] + turned[None, :, :]
        block.min(axis=2, out=result[start : start + step])

    starts = range(0, rows, step)
    if len(starts) < _WORTH_THREADS:
        for start in starts:
            fill(start)
    else:  # NumPy computes without the interpreter's lock; each thread fills rows of its own
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, starts))
    return result.astype(np.float64)


@dataclass
class _Tables:
    """Arithmetic on tables with every result computed once; tables are known by identity."""

    memo: dict[Hashable, Table] = field(default_factory=dict)
    kept: list[Table] = field(default_factory=list)

    def _once(self, key: Hashable, compute: object, *args: Table) -> Table:
        found = self.memo.get(key)
        if found is None:
            self.kept.extend(args)  # an identity must not be reused while it is a key
            found = compute(*args)  # type: ignore[operator]
            self.memo[key] = found
        return found

    def transpose(self, table: Table) -> Table:
        turned = self._once(("T", id(table)), lambda t: np.ascontiguousarray(t.T), table)
        self.memo.setdefault(("T", id(turned)), table)
        return turned

    def add(self, first: Table, second: Table) -> Table:
        return self._once(("+", id(first), id(second)), lambda a, b: a + b, first, second)

    def add_min(self, node: Table, edge: Table, leaf: Table) -> Table:
        """node[i] + min_s (edge[i, s] + leaf[s])"""
        key = ("1", id(node), id(edge), id(leaf))
        return self._once(key, lambda n, e, v: n + (e + v).min(axis=1), node, edge, leaf)

    def product(self, left: Table, node: Table, right: Table) -> Table:
        return self._once(("2", id(left), id(node), id(right)), min_plus, left, node, right)


@dataclass
class Elimination:
    """The problem after elimination, on scores = cost + price * memory.

    node:      remaining variable -> scores
    edges:     remaining variable -> neighbour -> scores [variable's, neighbour's]
    constant:  score of the components that disappeared whole
    """

    num_variables: int
    node: dict[int, Table]
    edges: dict[int, dict[int, Table]]
    constant: float = 0.0
    products: int = 0
    removed: list[tuple[int, Table, tuple[tuple[int, Table], ...]]] = field(default_factory=list)

    def expand_greedily(self) -> Choice:
        """`expand` with each remaining variable at the best of its own scores."""
        return self.expand({v: int(np.argmin(scores)) for v, scores in self.node.items()})

    def expand(self, chosen: dict[int, int]) -> Choice:
        """The best choice of all variables given that of the remaining ones."""
        choice = np.full(self.num_variables, -1, dtype=np.int64)
        for variable, strategy in chosen.items():
            choice[variable] = strategy
        for variable, node, neighbours in reversed(self.removed):
            score = node
            for other, edge in neighbours:
                score = score + edge[choice[other]]
            choice[variable] = int(np.argmin(score))
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
    state.removed.append((variable, node, towards))
    if not neighbours:
        state.constant += float(node.min())
    elif len(neighbours) == 1:
        other, edge = towards[0]
        state.node[other] = tables.add_min(state.node[other], edge, node)
    else:
        (first, left), (second, _) = towards
        before = len(tables.memo)
        product = tables.product(left, node, neighbours[1][1])
        state.products += len(tables.memo) - before
        _connect(state, tables, first, second, product)
