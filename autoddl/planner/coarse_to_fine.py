"""From the problem of few classes of strategies to that of the strategies that can be optimal.

Strategies that differ only in the order of mesh axes of one extent and link class are a class. The
problem of the classes has for each, and for each pair of them, what no member falls below in
seconds and, apart from that, in bytes: members compute alike, `sbp.path_bounds` bounds the
redistributions between two classes, a copy counts only if no two members agree, and of a storage
(`storage_table`) the least of all members counts. So of any price p >= 0 of memory (`lagrangian`)

    min over classes of cost + p (memory - limit)  <=  L(p)  <=  least cost within the limit,

and the best price of the few classes, which is 0 where memory does not bind, bounds the cost of all
strategies: a number of micro-batches is ruled out before any path is priced. At that price the
least score through each class (`reduced_costs`) tells which strategies a choice within `slack` of
the bound can have (`kept`). These alone are priced (`tables`), and every algorithm searches among
them; if its best choice costs more than the slack allows, the slack is raised to that.

This makes planning 1.4 to 2.3 times as fast on six axes and more (GPT of 6.8 to 175 billion
parameters). There are far fewer classes than strategies, and mostly the bounds are within 0.3 % of
the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cost.sharded_storage import WHOLE
from ..sbp.path_bounds import PathBounds
from ..search.elimination import eliminate
from ..search.lagrangian import Dual, Found, best_price, score_bound
from ..search.messages import Solved, solve
from ..search.problem import ROUNDING, Choice, Problem, Table
from ..search.reduced_costs import ReducedCosts
from .tables.pair_prices import PairPrices
from .tables.storage_table import GroupTable, StorageTable, with_storage
from .tables.tables import TableBuilder, Tables

# Of the bound: so little more may be had. 1e-5 and 5e-5 gave the same plans of GPT-0.35B on 2x16,
# VGG13 on 64 and ViT-S in 0.4 GB on 2x8, in times within noise.
CLOSE = 2e-5
# Of the bound: strategies are first kept that may be so little above it. With 1e-4 and 5e-4 a GPT
# of 32 blocks on 64x4 took 1.36 and 1.20 times as long and GPT-3 175B on 128x8 1.2 and 1.16 times,
# with 2e-3 GPT-36B on 256 1.2 times; the plans were the same, or 0.001 % faster (GPT-36B, 1e-4).
FIRST_SLACK = 1e-3
_ALTERNATIVES = 2  # classes of each table that stay, so that there is another one to show
Codes = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True)
class AxisClasses:
    """first: a strategy of each class; of: the class of each strategy."""

    first: NDArray[np.int64]
    of: NDArray[np.int64]

    @staticmethod
    def of_rows(assign: Codes, axes: Sequence[tuple[int, ...]]) -> AxisClasses:
        """axes: those that are interchangeable."""
        rows = np.ones((len(assign), assign.shape[1] + 1), dtype=np.uint8)
        rows[:, 1:] += counted(assign, axes).astype(np.uint8)
        keys = rows.view(f"S{rows.shape[1]}").ravel()  # no byte of them is zero
        _, first, of = np.unique(keys, return_index=True, return_inverse=True)
        return AxisClasses(first, of)

    def least(self, values: Table) -> Table:
        """[classes] the least of their members."""
        found = np.full(len(self.first), np.inf)
        np.minimum.at(found, self.of, values)
        return found

    def members(
        self, scores: Table, ceiling: float, at_least: int = _ALTERNATIVES
    ) -> NDArray[np.int64]:
        """The strategies of the classes that score no more, and of the best ones anyway."""
        stays = scores <= ceiling
        stays[np.argsort(scores, kind="stable")[:at_least]] = True
        return np.flatnonzero(stays[self.of])


def counted(codes: Codes, axes: Sequence[tuple[int, ...]]) -> Codes:
    """Equal for rows that have each code equally often on interchangeable axes."""
    return np.hstack([codes[:, :0], *(np.sort(codes[:, list(own)], axis=1) for own in axes)])


@dataclass(frozen=True)
class ClassProblem:
    """The problem of the classes; how parameters are stored is looked at only where memory counts.

    groups: of all strategies, with bounds of their own seconds
    apart:  the problem without what is stored
    storages: of the groups
    """

    classes: tuple[AxisClasses, ...]
    groups: Sequence[GroupTable]
    apart: Problem
    storages: Callable[[GroupTable], StorageTable | None]

    @cached_property
    def whole(self) -> Problem:
        """With parameters stored whole, as costs least; no member of a class falls below."""
        cost, memory = list(self.apart.node_cost), list(self.apart.node_memory)
        for number, (table, own) in enumerate(zip(self.groups, self.classes, strict=True)):
            if table.ports:
                stored = [port.memory_bytes(WHOLE) for port in table.ports]
                cost[number] = cost[number] + own.least(np.sum(table.whole_s, axis=0))
                memory[number] = memory[number] + own.least(np.sum(stored, axis=0))
        return replace(self.apart, node_cost=tuple(cost), node_memory=tuple(memory))

    @cached_property
    def stored(self) -> tuple[Problem, tuple[int, ...]]:
        """With what no member's storages fall below; the variables of the groups."""
        pairs = zip(map(self.storages, self.groups), self.classes, strict=True)
        return with_storage(self.apart, [s and _least_storage(s, c) for s, c in pairs])

    def with_whole(self, choice: Choice) -> Choice:
        """A choice of `whole` as one of `stored`."""
        problem, variables = self.stored
        found = np.zeros(problem.num_variables, dtype=np.int64)  # a storage of 0 is a whole one
        found[list(variables)] = choice
        return found


@dataclass
class ClassBounds:
    """builder: of all strategies, prepared; of: their classes.

    free: a cheap choice of parameters stored whole; free_s: no plan costs less, whatever its memory
    dual: a price of memory and its bound; near: how far the bound may be from the best, relative
    first_price: where to begin if the dual's is 0, as long as nothing is known
    solved: the problem at the dual's price, where that is known
    built: tables of some strategies, known ones
    """

    builder: TableBuilder
    of: ClassProblem
    limit_bytes: float
    free: Found
    free_s: float
    dual: Dual
    near: float = np.inf
    first_price: float = 0.0
    solved: Solved | None = None
    built: dict[bytes, Tables] = field(default_factory=dict)

    @property
    def bound(self) -> float:
        """No plan within the limit costs less; inf if none fits."""
        return self.dual.bound

    @property
    def problem(self) -> Problem:
        return replace(self.of.stored[0], memory_limit=self.limit_bytes)

    @cached_property
    def least_bytes(self) -> float:
        """No plan holds less, whatever it costs."""
        found = _solved(self.problem, math.inf)
        return self.problem.evaluate(found.choice)[1] * (1 - ROUNDING) - found.short

    @property
    def size(self) -> int:
        """Number of strategies."""
        return sum(len(c.of) for c in self.of.classes)

    @cached_property
    def _scores(self) -> list[Table]:
        problem = self.problem if self.dual.price else self.of.whole
        found = self.solved or _solved(problem, self.dual.price)
        contexts = ReducedCosts(found.state, found.messages, nodes_only=True)
        return [contexts.through(n) for n in range(len(self.of.classes))]

    def kept(self, slack: float) -> list[NDArray[np.int64]]:
        """For each node table, the strategies that a choice below `ceiling(slack)` can have."""
        price = self.dual.price
        highest = self.ceiling(slack) + (price * self.limit_bytes if price else 0.0)
        highest += 2 * ROUNDING * abs(highest)
        pairs = zip(self.of.classes, self._scores, strict=True)
        return [classes.members(scores, highest) for classes, scores in pairs]

    def ceiling(self, slack: float) -> float:
        """No choice within the limit that `kept(slack)` leaves out costs less."""
        return self.bound * (1 + slack)

    def tables(self, kept: Sequence[NDArray[np.int64]], prices: PairPrices) -> Tables:
        """The exact tables of these strategies, whose redistributions are priced now."""
        key = b"".join(own.tobytes() for own in kept)
        if key not in self.built:
            self.built[key] = self.builder.among(kept, prices).build()
        return self.built[key]

    def within(self, limit_bytes: float, enough: float = np.inf) -> ClassBounds:
        """Bounds for another memory limit, at its best price or one whose bound is `enough`."""
        start = Dual(self.dual.price, -np.inf)
        other = replace(self, limit_bytes=limit_bytes, dual=start, near=np.inf, solved=None)
        return other.raised(enough)

    def in_more(self, micro_batches: int, most: int | None = None) -> ClassBounds:
        """Bounds of so many micro-batches, a multiple of these, to be `raised`.

        most: and of all numbers between; storages take no less in more of them, and memory no less
              than in the most
        So GPT-3 of 175 billion parameters on 1024 devices needs classes for three numbers of
        micro-batches, not seven, and is planned 1.2 times as fast.

        In k times as many a choice takes no less time, its storages what they take, and no less
        than a k-th of the memory, of what belongs to parameters all.
        """
        parts = replace(self.builder.tables, micro_batches=micro_batches)
        share = self.builder.micro_batches / (most or micro_batches)
        nodes, edges = _lasting(self.builder)
        apart = replace(
            self.of.apart,
            node_memory=_shared(self.of.apart.node_memory, share, nodes),
            edge_memory=_shared(self.of.apart.edge_memory, share, edges),
        )
        of = replace(self.of, apart=apart, storages=parts.storage)
        start = Dual(self.dual.price, -np.inf)
        return replace(self, of=of, dual=start, near=np.inf, solved=None)

    def raised(self, enough: float, near: float = CLOSE) -> ClassBounds:
        """Bounds at the best price of memory, or at one whose bound is `enough`.

        near: so much may the bound fall short of the best one, relative to itself
        """
        if self.bound >= enough or self.near <= near:
            return self
        choice, short = self.free
        if self.of.whole.evaluate(choice)[1] <= self.limit_bytes:  # memory counts for nothing
            return replace(self, dual=Dual(0.0, self.free_s), near=0.0)
        solved: dict[float, Solved] = {}
        problem = self.problem

        def solve_at(price: float) -> Found:
            found = solved[price] = _solved(problem, price)
            return found.choice, found.short

        free = self.of.with_whole(choice), short
        found = best_price(
            problem, solve_at, free, start=self.dual.price or self.first_price, near=near,
            done=lambda _, bound: bound >= enough,
        )  # fmt: skip
        near = np.inf if enough <= max(self.bound, found.bound) < np.inf else near
        if found.bound <= self.bound:
            return replace(self, near=near)
        return replace(self, dual=found, near=near, solved=solved.get(found.price))


def class_bounds(
    builder: TableBuilder, least: PathBounds, price: float = 0.0
) -> ClassBounds | None:
    """Bounds with memory ignored, to be `raised`; None if the graph's tensors have too many dims.

    builder: of all strategies; least: of their redistributions
    price:   of memory, where to begin if memory binds, if it is not 0
    Raises NoStrategy.
    """
    if not all(map(least.fits, builder.grouping.graph.numbers_of_dims)):
        return None
    builder.prepare()
    classes = tuple(AxisClasses.of_rows(t.assign, least.classes) for t in builder.group_tables)
    apart, groups = _class_problem(builder, classes, least)
    of = ClassProblem(classes, groups, apart, builder.tables.storage)
    found = _solved(of.whole, 0.0)
    free = found.choice, found.short
    free_s = score_bound(of.whole, free, 0.0)
    limit_bytes, dual = builder.model.limit_bytes, Dual(0.0, free_s)
    return ClassBounds(
        builder, of, limit_bytes, free, free_s, dual, first_price=price, solved=found
    )


def _solved(problem: Problem, price: float) -> Solved:
    return solve(eliminate(problem, price, frozenset()))


def _class_problem(
    builder: TableBuilder, classes: Sequence[AxisClasses], least: PathBounds
) -> tuple[Problem, list[GroupTable]]:
    """The problem without storages, and the tables of all strategies with bounds of their own."""
    few = builder.among([c.first for c in classes], least)
    every = replace(builder, prices=least)
    few.ask()
    tables = every.priced()
    problem = few.apart([t.some(c.first) for t, c in zip(tables, classes, strict=True)])
    edge_memory = list(problem.edge_memory)
    for number, wire in enumerate(few.wires.values()):
        agree = _agree(wire.given, wire.wanted, least.classes)
        added = 0.0 if wire.added is None else wire.added
        edge_memory[number] = np.where(agree, added, edge_memory[number])
    return replace(problem, edge_memory=tuple(edge_memory)), tables


def _lasting(builder: TableBuilder) -> tuple[set[int], set[int]]:
    """The node tables and edge tables of parameters, whose memory no micro-batch shares."""
    nodes = {number for number, group in enumerate(builder.owners) if group.head.kind == "param"}
    return nodes, {number for number, key in enumerate(builder.wires) if key[0] in nodes}


def _shared(memory: Sequence[Table], share: float, lasting: set[int]) -> tuple[Table, ...]:
    """The share of each table's bytes, of `lasting` ones all."""
    return tuple(m if number in lasting else share * m for number, m in enumerate(memory))


def _agree(given: Codes, wanted: Codes, axes: Sequence[tuple[int, ...]]) -> NDArray[np.bool_]:
    """[given's, wanted's] whether orders of both are the same placement."""
    given, wanted = counted(given, axes), counted(wanted, axes)
    agree = np.ones((len(given), len(wanted)), dtype=bool)
    for axis in range(given.shape[1]):
        agree &= given[:, axis][:, None] == wanted[:, axis]
    return agree


def _least_storage(storage: StorageTable, classes: AxisClasses) -> StorageTable:
    """For each class the seconds and bytes that no member falls below; inf s if none has it."""
    shape = len(classes.first), len(storage.storages)
    seconds, memory = np.full(shape, np.inf), np.full(shape, np.inf)
    for k in range(storage.which.shape[1]):
        at = classes.of, storage.which[:, k]
        np.minimum.at(seconds, at, storage.seconds[:, k])
        np.minimum.at(memory, at, storage.memory_bytes[:, k])
    which = np.broadcast_to(np.arange(shape[1]), shape)
    memory = np.where(np.isfinite(memory), memory, 0.0)
    return StorageTable(storage.storages, which, seconds, memory)
