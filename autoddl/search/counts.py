"""The optimum within a memory limit as an integer program of how often each entry is used.

An elimination makes the entries of each table from those of others: in a product [i, j] from
[i, s], s and [s, j]. A choice uses each entry of each table some number of times, and makes it as
often, in any of the ways that there are. So with y[w] >= 0 integer for every way w

    minimise    sum cost[x] uses[x]                 over the entries x of the problem's own tables
    subject to  sum of y[w] that make x = sum of y[w] that use x        for every other entry x
                one entry of the last table of each component is used, once
                sum memory[x] uses[x] <= memory_limit

and any solution is a choice: each use of an entry takes one of the ways in which it was made. Equal
tables are made once (`removals`), so the program knows equal blocks only by their number: it grows
with the logarithm of the depth, and has no two solutions that differ in the order of blocks only.

Ways of which no choice below a ceiling can be made (`marginals`) are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .eliminate import Elimination
from .gap import ROUNDING
from .marginals import Contexts
from .problem import Choice, Problem, Table
from .removals import Making

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Numbers = NDArray[np.int64]
_MEMORY_SCALE = 1e5  # of the limit's row: the solver's tolerance is a small part of it
_INFEASIBLE = 2
_CUBE = 4_000_000  # sums of three tables' entries that are looked at together


@dataclass(frozen=True)
class Counted:
    """bound: no choice within the limit, of those below the ceiling, costs less; inf: there is none

    choice: the best found, which may exceed the limit by rounding; None if there is none
    """

    bound: float
    choice: Choice | None


def least_by_counts(
    problem: Problem,
    state: Elimination,
    contexts: Contexts,
    price: float,
    best: float,
    columns: int,
    nodes: int,
) -> Counted | None:
    """Of choices that cost less than `best`; None if the program has more than so many `columns`.

    state: of the problem, complete, at that price of memory; contexts: its
    nodes: of the solver's tree, at most
    """
    ceiling = best + price * problem.memory_limit
    program = _Program(state.tables, contexts, ceiling + ROUNDING * abs(ceiling))
    program.own(problem)
    for making in state.order.makings:
        program.add(making)
        if program.columns > columns:
            return None
    for root in state.order.roots:
        program.use(root)
    if not all(len(root.makes) for root in program.roots):
        return Counted(math.inf, None)
    answer = program.solve(best, problem, nodes)
    if answer.status == _INFEASIBLE:
        return Counted(math.inf, None)
    bound = -math.inf
    if answer.mip_dual_bound is not None:
        bound = best * (answer.mip_dual_bound - ROUNDING * abs(answer.mip_dual_bound))
    if answer.x is None:
        return Counted(bound, None)
    return Counted(bound, _decoded(program, state, np.rint(answer.x).astype(np.int64)))


@dataclass(frozen=True)
class _Ways:
    """Columns from `first` on, one for each way: the entry it makes, by what strategy."""

    first: int
    makes: Numbers
    strategy: Numbers


@dataclass
class _Program:
    """Rows by entry that may be used, columns by way; tables are known by their slots."""

    tables: Sequence[Table]
    contexts: Contexts
    ceiling: float
    rows: int = 0
    columns: int = 0
    row_of: dict[int, Numbers] = field(default_factory=dict)  # table -> row of each entry, or -1
    ways: dict[int, _Ways] = field(default_factory=dict)  # table made -> how
    roots: list[_Ways] = field(default_factory=list)
    _parts: list[tuple[Numbers, Numbers, float]] = field(default_factory=list)
    _costs: list[Table] = field(default_factory=list)
    _memories: list[Table] = field(default_factory=list)

    def own(self, problem: Problem) -> None:
        """Columns for the problem's own tables."""
        costs = [*problem.node_cost, *problem.edge_cost]
        memories = [*problem.node_memory, *problem.edge_memory]
        for slot, (cost, memory) in enumerate(zip(costs, memories, strict=True)):
            alive = self._alive(slot)
            columns = self._add(cost.ravel()[alive], memory.ravel()[alive])
            self._put(self.row_of[slot][alive], columns, 1.0)

    def add(self, making: Making) -> None:
        """Columns for the ways in which entries are made."""
        out, args = self.tables[making.out], [self.tables[slot] for slot in making.args]
        if making.kind == "transpose":
            rows, columns = args[0].shape
            made = np.arange(rows * columns)
            row, column = np.divmod(made, rows)  # of what is made
            self._make(making, made, (column * columns + row,), made)
        elif making.kind == "add":
            made = np.arange(out.size)
            self._make(making, made, (made, made), made)
        elif making.kind == "absorb":
            node, edge, leaf = args
            room = self.ceiling - self.contexts.of(making.out) - node
            row, strategy = np.nonzero(edge + leaf <= room[:, None])
            used = row, row * edge.shape[1] + strategy, strategy
            self._make(making, row, used, strategy)
        else:
            left, _, right = args
            row, strategy, column = self._triples(args, self.contexts.of(making.out))
            used = row * left.shape[1] + strategy, strategy, strategy * right.shape[1] + column
            self._make(making, row * right.shape[1] + column, used, strategy)

    def _triples(self, args: Sequence[Table], context: Table) -> tuple[Numbers, Numbers, Numbers]:
        left, node, right = args
        room = self.ceiling - context
        found: list[tuple[Numbers, ...]] = []
        step = max(1, _CUBE // max(1, right.size))
        for low in range(0, len(left), step):
            some = (left[low : low + step] + node)[:, :, None] + right
            row, strategy, column = np.nonzero(some <= room[low : low + step, None, :])
            found.append((row + low, strategy, column))
        row, strategy, column = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return row, strategy, column

    def _make(
        self, making: Making, made: Numbers, used: tuple[Numbers, ...], strategy: Numbers
    ) -> None:
        self._alive(making.out)
        rows = [self.row_of[making.out][made]]
        rows += [self.row_of[slot][e] for slot, e in zip(making.args, used, strict=True)]
        alive = np.logical_and.reduce([row >= 0 for row in rows])
        nothing = np.zeros(int(alive.sum()))
        columns = self._add(nothing, nothing)
        for row, sign in zip(rows, (1.0, -1.0, -1.0, -1.0), strict=False):
            self._put(row[alive], columns, sign)
        first = self.columns - len(columns)
        self.ways[making.out] = _Ways(first, made[alive], strategy[alive])

    def use(self, root: int) -> None:
        """Columns for the use of an entry of the last table of a component."""
        alive = np.flatnonzero(self.row_of[root] >= 0)
        columns = self._add(np.zeros(len(alive)), np.zeros(len(alive)))
        self._put(self.row_of[root][alive], columns, -1.0)
        self.roots.append(_Ways(self.columns - len(columns), np.zeros_like(alive), alive))

    def _alive(self, slot: int) -> Numbers:
        """Entries of a table that choices below the ceiling may use; gives them rows."""
        alive = np.flatnonzero(self.contexts.through(slot).ravel() <= self.ceiling)
        if slot not in self.row_of:
            rows = np.full(self.tables[slot].size, -1)
            rows[alive] = self.rows + np.arange(len(alive))
            self.rows += len(alive)
            self.row_of[slot] = rows
        return alive

    def _add(self, cost: Table, memory: Table) -> Numbers:
        columns = np.arange(self.columns, self.columns + len(cost))
        self.columns += len(cost)
        self._costs.append(cost)
        self._memories.append(memory)
        return columns

    def _put(self, rows: Numbers, columns: Numbers, value: float) -> None:
        self._parts.append((rows, columns, value))

    def solve(self, unit_s: float, problem: Problem, nodes: int) -> OptimizeResult:
        """HiGHS's answer, with costs in units of `unit_s`."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # a quarter of a second
        from scipy.sparse import csr_matrix

        row = np.concatenate([row for row, _, _ in self._parts])
        column = np.concatenate([column for _, column, _ in self._parts])
        value = np.concatenate([np.full(len(row), value) for row, _, value in self._parts])
        once = np.concatenate([np.full(len(r.makes), n) for n, r in enumerate(self.roots)])
        roots = np.concatenate([r.first + np.arange(len(r.makes)) for r in self.roots])
        flow = csr_matrix((value, (row, column)), shape=(self.rows, self.columns))
        one = csr_matrix((np.ones(len(roots)), (once, roots)), (len(self.roots), self.columns))
        memory = np.concatenate(self._memories) * (_MEMORY_SCALE / problem.memory_limit)
        return milp(
            np.concatenate(self._costs) / unit_s,
            integrality=np.ones(self.columns),
            bounds=Bounds(0.0, 2.0 * problem.num_variables),  # type: ignore[arg-type]
            constraints=[
                LinearConstraint(flow, 0.0, 0.0),  # type: ignore[arg-type]
                LinearConstraint(one, 1.0, 1.0),  # type: ignore[arg-type]
                LinearConstraint(csr_matrix(memory), -np.inf, _MEMORY_SCALE),
            ],
            options={"mip_rel_gap": ROUNDING / 2, "node_limit": nodes},
        )


def _decoded(program: _Program, state: Elimination, counts: Numbers) -> Choice:
    """The choice whose uses of entries are those of the columns `counts`."""
    left = counts.copy()
    absorbed = {
        making.args: making.out for making in state.order.makings if making.kind == "absorb"
    }

    def taken(ways: _Ways, entry: int) -> int:
        """The strategy of one more way in which an entry is made."""
        some = ways.first + np.flatnonzero(ways.makes == entry)
        column = some[left[some].argmax()]
        assert left[column] > 0, "an entry is made as often as it is used"
        left[column] -= 1
        return int(ways.strategy[column - ways.first])

    choice = np.full(state.num_variables, -1, dtype=np.int64)
    last = [removal.variable for removal in state.order.removed if not removal.neighbours]
    for variable, ways in zip(last, program.roots, strict=True):
        choice[variable] = taken(ways, 0)
    for removal in reversed(state.order.removed):
        at = [int(choice[other]) for other, _ in removal.neighbours]
        if len(at) == 1:
            ((_, edge),) = removal.neighbours
            assert removal.before is not None
            made = absorbed[removal.before, edge, removal.node]
            choice[removal.variable] = taken(program.ways[made], at[0])
        elif at:
            assert removal.made is not None
            entry = at[0] * state.tables[removal.made].shape[1] + at[1]
            choice[removal.variable] = taken(program.ways[removal.made], entry)
    return choice
