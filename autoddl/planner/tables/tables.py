"""Cost tables of a graph on a cluster, built once for each distinct group and edge.

For group g with strategy s, seconds of one iteration of M micro-batches:

    node(s)    = M (compute(s) + inner collectives(s)) + synchronisation of its gradients(s)
    edge(s, t) = M (path(out_s -> in_t) + path(grad_in_t -> grad_out_s))

The forward parts of what is run again (`cost.recompute`) count twice. An edge from a tied parameter
is paid once an iteration, not M times (AutoDDL section 4.3 names both sources of communication).
Where parameters may be stored split, a group with parameters has a second variable,
`storage_table`. Everything is computed on arrays over all strategies of a group. `build_tables`
makes the `Problem`.

Where communication runs beside computation, a step takes no less than, of C seconds of computation,
A of redistributions between and inside operators, H of what else is communicated (the exchange of
gradients, gathers of ZeRO's stage 3), y of the last exchange and gather of each parameter, and b of
the last backward pass,

    one micro-batch at a time    T >= max(C + A, C + A - b + y, A + H)
    any number in flight         T >= max(C, C - b + y, A + H)

(and what is gathered before all else). With buckets y can be less, but not less than without
latencies. Of b does not count what runs before any gradient is there; and of gradients that come
late, when but the backward passes l are left, z seconds are as in y and l as in b: a fourth bound.
A mean of these bounds is additive, and a bound of all plans. At the prices of a `StepPrice` the
tables are of that mean, and `planner.overlap` says of which.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cost.model import CostModel, StepPrice
from ...cost.recompute import Recomputation
from ...cost.sharded_storage import WHOLE, Storage
from ...graph.graph import Graph
from ...sbp.edges import words
from ...sbp.layout import TensorSpec
from ...search.lagrangian import may_fit
from ...search.problem import Choice, Edge, Problem, Table
from .group_table import WHOLE_SPACE, GroupTables, Space, grad_in, grad_out
from .groups import Group, Grouping, Port, make_groups, rule_of
from .memory import LastMemory
from .pair_prices import PairPrices, Prices
from .storage_table import Codes, GroupTable, with_storage

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Tables:
    """The problem's arrays with what they stand for.

    groups:    by node table number
    variables: group -> the variable of its strategy; that of its storage, if it has one, is the
               next
    """

    grouping: Grouping
    problem: Problem
    groups: tuple[GroupTable, ...]
    variables: tuple[int, ...]
    model: CostModel
    micro_batches: int
    again: Recomputation

    def table_of(self, group: int) -> GroupTable:
        return self.groups[self.problem.nodes[self.variables[group]]]

    def strategy(self, choice: Choice, group: int) -> int:
        return int(choice[self.variables[group]])

    def storage(self, choice: Choice, group: int) -> Storage:
        """How the parameters of a group are stored."""
        table = self.table_of(group).storage
        if table is None:
            return WHOLE
        variable = self.variables[group]
        return table.pick(choice[variable], choice[variable + 1])

    def memory_of(self, choice: Choice, group: int) -> float:
        """Bytes of a group without the redistributions of its inputs."""
        table, strategy = self.table_of(group), self.strategy(choice, group)
        memory = float(table.memory_bytes[strategy])
        if table.storage is not None:
            memory += float(table.storage.memory_bytes[strategy, choice[self.variables[group] + 1]])
        return memory


def build_tables(
    graph: Graph,
    model: CostModel,
    micro_batches: int = 1,
    space: Space = WHOLE_SPACE,
    prices: PairPrices | None = None,
    again: Recomputation | None = None,
    grouping: Grouping | None = None,
) -> Tables | None:
    """The search problem of `graph` (with forks, at the micro-batch's size) on `model.cluster`.

    prices: shared by calls for one model, so that no path is priced twice
    again:  which blocks are run again before their backward pass
    grouping: of the graph, if it is known
    None if no choice keeps to the memory limit: then no edge is priced.
    Raises ValueError if `space` leaves a group without a strategy.
    """
    if prices is None:
        prices = PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)
    again, grouping = again or Recomputation(graph), grouping or make_groups(graph)
    return TableBuilder(grouping, model, micro_batches, space, prices, again).tables_within_limit()


def among_chosen(builder: TableBuilder, tables: Tables, choice: Choice) -> Tables | None:
    """Tables with those strategies only that a choice has, of another number of micro-batches.

    tables, choice: the choice and what it is of; None if the builder's cannot be divided so
    """
    builder.prepare()
    rows: list[set[int]] = [set() for _ in builder.owners]
    for group, node in enumerate(builder.nodes):
        old, new = tables.table_of(group), builder.group_tables[node]
        chosen = old.assign[tables.strategy(choice, group)]
        found = np.flatnonzero((new.assign == chosen).all(axis=1))
        if old.composites != new.composites or not len(found):
            return None
        rows[node].add(int(found[0]))
    return builder.among([np.array(sorted(own)) for own in rows], builder.prices).build()


# (source's node table, its operator, output, target's node table, its operator, input, and whether
# it has a gradient, and is kept)
_WireKey = tuple[int, int, int, int, int, int, bool, bool]


@dataclass(frozen=True)
class _Wire:
    """An edge between two groups: a tensor, given and wanted per strategy, and its gradient.

    passes: forward passes of the reader; kept: how much of the memory of its copy counts
    added: bytes besides; is_param: of a parameter, whose gradient is exchanged
    """

    spec: TensorSpec
    times: int
    passes: int
    kept: float
    given: Codes
    wanted: Codes
    back_given: Codes | None
    back_wanted: Codes | None
    added: Table | None = None
    is_param: bool = False

    def both_ways(self) -> list[tuple[Codes, Codes]]:
        ways = [(self.given, self.wanted)]
        if self.back_given is not None and self.back_wanted is not None:
            ways.append((self.back_given, self.back_wanted))
        return ways


@dataclass
class TableBuilder:
    """Tables in steps: `prepare`, `fits`, `build`.

    check: asked on the way, raises what ends the planning
    """

    grouping: Grouping
    model: CostModel
    micro_batches: int
    space: Space
    prices: Prices
    again: Recomputation
    check: Callable[[], None] = lambda: None
    node_of_key: dict[Hashable, int] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    owners: list[Group] = field(default_factory=list)
    group_tables: list[GroupTable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = GroupTables(
            self.graph, self.model, self.space, self.prices, self.again, self.micro_batches
        )

    @property
    def graph(self) -> Graph:
        return self.grouping.graph

    def among(self, rows: Sequence[Rows], prices: Prices) -> TableBuilder:
        """After `prepare`: another one of these strategies of each node table."""
        other = replace(
            self,
            prices=prices,
            group_tables=[t.some(r) for t, r in zip(self.group_tables, rows, strict=True)],
        )
        other.last, other.inputs = self.last, self.inputs
        return other

    def prepare(self) -> None:
        """Tables without communication."""
        if not self.group_tables:
            self.last = LastMemory(self.tables, self.grouping)
            self._number()
            self.group_tables = list(map(self._local, self.owners))

    def _local(self, group: Group) -> GroupTable:
        self.check()
        return self.last.of_group(group, self.tables.local(group))

    def at_price(self, price: StepPrice) -> TableBuilder:
        """After `prepare` for serial steps: the same at a price of steps that overlap."""
        model = replace(self.model, price=price)
        fixed = self.micro_batches, self.space, self.prices, self.again
        other = TableBuilder(self.grouping, model, *fixed, self.check)
        other.last = self.last
        other._number()
        known = {node: self.nodes[number] for number, node in enumerate(other.nodes)}
        for node, group in enumerate(other.owners):
            table = self.group_tables[known[node]]
            other.group_tables.append(other.tables.at_price(group, table))
        return other

    def _number(self) -> None:
        """Number the groups' tables."""
        for number, group in enumerate(self.grouping.groups):
            key = self._key(number)
            if key not in self.node_of_key:
                self.node_of_key[key] = len(self.owners)
                self.owners.append(group)
            self.nodes.append(self.node_of_key[key])

    @property
    def computation_s(self) -> float:
        """Seconds that no choice falls below, once prepared."""
        least = [float(table.compute_s.min()) for table in self.group_tables]
        return self.micro_batches * sum(least[node] for node in self.nodes)

    def tables_within_limit(self) -> Tables | None:
        """All steps; None if no choice keeps to the memory limit: then no edge is priced."""
        self.prepare()
        return self.build() if self.may_fit() and self.fits() else None

    def may_fit(self) -> bool:
        """Once prepared, whether some choice may keep to the memory limit."""
        least = [float(table.least_bytes.min()) for table in self.group_tables]
        return sum(least[node] for node in self.nodes) <= self.model.limit_bytes

    def _key(self, number: int) -> Hashable:
        """Equal for groups that share a table."""
        if self.space.allowed is not None:  # a restriction may look at names
            return number
        ops, price = self.grouping.groups[number].ops, self.model.price
        again = tuple((self.again.key(op), self.tables.kept.key(op)) for op in ops)
        counts = tuple(price.kind(op.name) for op in ops) if price else ()
        return self.grouping.kinds[number], again, number in self.last.groups, counts

    def fits(self) -> bool:
        """Whether some choice keeps to the memory limit; exact, but for rounding in its favour."""
        if self.model.limit_bytes == float("inf"):
            return True
        wires = self.wires
        memory = tuple(t.least_bytes for t in self.group_tables)
        copies = tuple(map(self._copies, wires.values()))
        problem = Problem(
            node_cost=tuple(map(np.zeros_like, memory)),
            node_memory=memory,
            edge_cost=tuple(map(np.zeros_like, copies)),
            edge_memory=copies,
            nodes=tuple(self.nodes),
            edges=self._edges(),
            memory_limit=self.model.limit_bytes,
        )
        return may_fit(problem)

    def build(self) -> Tables:
        self.ask()
        return self.joined([replace(t, storage=self.tables.storage(t)) for t in self.priced()])

    def ask(self) -> None:
        """Announce what `priced` and `joined` need."""
        self._ask(self.wires.values(), zip(self.owners, self.group_tables, strict=True))

    def priced(self) -> list[GroupTable]:
        """The groups' tables with the seconds of their own communication."""
        return list(map(self._priced, self.owners, self.group_tables))

    def _priced(self, group: Group, table: GroupTable) -> GroupTable:
        self.check()
        return self.tables.priced(group, table)

    def joined(self, groups: Sequence[GroupTable]) -> Tables:
        """These groups, whose storages are known, joined with the priced edges between them."""
        found = with_storage(self.apart(groups), [t.storage for t in groups])
        own = self.model, self.micro_batches, self.again
        return Tables(self.grouping, found[0], tuple(groups), found[1], *own)

    def apart(self, groups: Sequence[GroupTable]) -> Problem:
        """The problem of these groups and the edges between them, storages left out."""
        priced = [self._price(wire) for wire in self.wires.values()]
        heavy = [
            group.head.kind == "param" or any(rule_of(op).heavy for op in group.ops)
            for group in self.owners
        ]
        return Problem(
            node_cost=tuple(map(self._node_seconds, groups)),
            node_memory=tuple(t.memory_bytes for t in groups),
            edge_cost=tuple(cost for cost, _ in priced),
            edge_memory=tuple(memory for _, memory in priced),
            nodes=tuple(self.nodes),
            edges=self._edges(),
            heavy=frozenset(n for n, table in enumerate(self.nodes) if heavy[table]),
            memory_limit=self.model.limit_bytes,
        )

    def _ask(self, wires: Iterable[_Wire], groups: Iterable[tuple[Group, GroupTable]]) -> None:
        """Announce what these edges and groups need."""
        for wire in wires:
            for sources, targets in wire.both_ways():
                self.prices.ask(wire.spec, sources, targets)
        for group, table in groups:
            self.tables.ask(group, table)

    def _node_seconds(self, table: GroupTable) -> Table:
        return self.micro_batches * (table.compute_s + table.inner_s) + table.sync_s

    def _edges(self) -> tuple[Edge, ...]:
        number_of = {key: number for number, key in enumerate(self.wires)}
        return tuple(
            Edge(source, number, number_of[key])
            for number, inputs in enumerate(self.inputs)
            for source, key in inputs
        )

    @cached_property
    def inputs(self) -> list[list[tuple[int, _WireKey]]]:
        """For each group its inputs from others: (source group, key of the edge's table)."""
        position = {
            op.name: number for group in self.grouping.groups for number, op in enumerate(group.ops)
        }
        return [
            self._inputs(number, group, position)
            for number, group in enumerate(self.grouping.groups)
        ]

    def _inputs(
        self, number: int, group: Group, position: dict[str, int]
    ) -> list[tuple[int, _WireKey]]:
        found = []
        for port in group.inputs:
            producer = self.graph.producers[port.tensor]
            source = self.grouping.owner[producer.name]
            out, use = producer.outputs.index(port.tensor), (group.ops[port.op].name, port.index)
            key = (
                self.nodes[source], position[producer.name], out, self.nodes[number], port.op,
                self._first_alike(self.nodes[number], port), use in self.graph.gives_grad,
                use in self.tables.kept.readers,
            )  # fmt: skip
            found.append((source, key))
        return found

    def _first_alike(self, node: int, port: Port) -> int:
        """The first input of a port's operator that all strategies place as that one, forth and

        back: a stack of the 128 steps of an LSTM needs one table for all of them.
        """
        key = node, port.op
        if key not in self._alike:
            signatures = [c.signatures[port.op] for c in self.group_tables[node].composites]
            first: dict[Hashable, int] = {}
            self._alike[key] = [
                first.setdefault(tuple((s.ins[n], s.grad_ins[n]) for s in signatures), n)
                for n in range(len(self.owners[node].ops[port.op].inputs))
            ]
        return self._alike[key][port.index]

    @cached_property
    def _alike(self) -> dict[tuple[int, int], list[int]]:
        """Node table and operator -> of each input the first that is placed alike."""
        return {}

    @cached_property
    def wires(self) -> dict[_WireKey, _Wire]:
        """The distinct edges between groups, in order of appearance."""
        wires: dict[_WireKey, _Wire] = {}
        for group, inputs in zip(self.grouping.groups, self.inputs, strict=True):
            for port, (source, key) in zip(group.inputs, inputs, strict=True):
                if key not in wires:
                    reader = group.ops[port.op].name
                    wires[key] = self._wire(port, key, self.grouping.groups[source], reader)
        return wires

    def _wire(self, port: Port, key: _WireKey, source: Group, reader: str) -> _Wire:
        given_node, position, out, wanted_node, _, _, has_grad, is_kept = key
        given, wanted = self.group_tables[given_node], self.group_tables[wanted_node]
        back_given = back_wanted = None
        if has_grad:
            back_given = wanted.codes(lambda c: grad_in(c.signatures[port.op], port.index))
            back_wanted = given.codes(lambda c: grad_out(c.signatures[position], out))
        is_param = source.ops[position].kind == "param"
        return _Wire(
            self.graph.tensors[port.tensor].spec,
            1 if is_param else self.micro_batches,
            1 if is_param else self.again.passes(reader),
            1.0 if is_param else is_kept * self.again.weight(reader),
            given.codes(lambda c: c.signatures[position].outs[out]),
            wanted.codes(lambda c: c.signatures[port.op].ins[port.index]),
            back_given,
            back_wanted,
            self.last.of_edge(
                source.ops[position],
                (source, given),
                (self.owners[wanted_node], wanted),
            ),
            is_param,
        )

    def _price(self, wire: _Wire) -> tuple[Table, Table]:
        """(seconds, bytes) for each pair of strategies."""
        self.check()
        cost = self.prices.seconds(wire.spec, wire.given, wire.wanted)
        if not wire.is_param:  # a parameter is gathered before all else
            cost = self.model.moving(cost)
        if wire.passes != 1:
            cost = wire.passes * cost
        if wire.back_given is not None and wire.back_wanted is not None:
            back = wire.spec, wire.back_given, wire.back_wanted
            if wire.is_param:
                back_s = self.tables.exchange_prices(wire.spec).seconds(*back)
                cost += self.model.exchanged(back_s).T
            else:
                cost += self.model.moving(self.prices.seconds(*back)).T
        if wire.times != 1:
            cost *= wire.times
        return cost, self._copies(wire)

    def _copies(self, wire: _Wire) -> Table:
        """Bytes of an edge, mostly of the redistributed input, for each pair of strategies."""
        given, wanted = (words(c, len(wire.spec.shape)) for c in (wire.given, wire.wanted))
        copies = self.tables.held_bytes(wire.spec, wire.wanted)
        found = np.where(given[:, None] != wanted, wire.kept * copies[None, :], 0.0)
        return found if wire.added is None else found + wire.added


# Some strategies of each group of a prepared builder, enough for a plan that is wanted soon.
Few = Callable[[TableBuilder], Sequence[Rows]]
