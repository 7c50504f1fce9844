"""Cost tables of all baselines at once: the strategies that any of them may use, and no others.

A scheme is alike on all its data axes and on all its tensor axes, so a group of operators has few
strategies in it: one composite signature for the former, one for the latter. `SchemeTables.build`
makes the tables of their union with the search's own builder, so that prices are the search's;
`SchemeTables.of_variant` is the part of one scheme, a search problem of its own.

A scheme could instead be planned by the ordinary tables on a mesh whose axes of one kind are merged
into one. That gives the same records, but tables for each of about twenty topologies take three to
five times as long as these, on models that are planned in half a second, mostly in NumPy's overhead
for small arrays.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...cost.sharded_storage import WHOLE, Codes, Storage, StoragePrices, chosen_axes, stage_at
from ...search.problem import Choice, Edge, Problem
from ..tables.group_table import GroupTables, Space
from ..tables.groups import CompositeSignature, Group, Grouping, Port
from ..tables.storage_table import GroupTable
from ..tables.strategies import Assignments
from ..tables.tables import TableBuilder, Tables
from .coarse import CoarsePrices
from .families import ANY, EXPERTS, Variant, has_weight, letter_of, splits_only_batch

Rows = NDArray[np.int64]
Axes = tuple[int, ...]
Label = tuple[int, str]  # number of a table, letter
Letters = Mapping[str, Mapping[str, str]]  # family -> operator -> letter on the tensor axes
_NO_ROWS: Assignments = np.zeros((0, 0), dtype=np.int16)


@dataclass(frozen=True)
class Section:
    """What picks the strategies of a group in a scheme.

    letter: of its product on the tensor axes, ANY if it has none or the scheme leaves it open
    split:  whether its parameters are stored split over the data axes
    """

    tensor_axes: Axes
    letter: str
    split: bool


@dataclass
class GroupRows:
    """A group's strategies as rows of composite numbers, with how parameters are stored."""

    composites: tuple[CompositeSignature, ...]
    rows: dict[tuple[tuple[int, ...], Storage], int] = field(default_factory=dict)
    sections: dict[Section, Rows] = field(default_factory=dict)

    @property
    def storages(self) -> tuple[list[Storage], Rows]:
        """The distinct storages of the rows, and for each row the number of its own."""
        number: dict[Storage, int] = {}
        which = [number.setdefault(storage, len(number)) for _, storage in self.rows]
        return list(number), np.array(which, dtype=np.int64)

    def add(self, section: Section, assign: NDArray[np.int16], storages: Sequence[Storage]) -> None:
        keys = [(tuple(row), storage) for row in assign.tolist() for storage in storages]
        self.sections[section] = np.array(
            [self.rows.setdefault(key, len(self.rows)) for key in keys], dtype=np.int64
        )


@dataclass(frozen=True)
class UnionTables(GroupTables):
    """The tables of groups whose strategies are those of the schemes.

    topologies: the tensor axes of every scheme
    made:       head of a group -> its rows, which `local` adds; whatever is run again
    """

    topologies: tuple[Axes, ...] = ()
    made: dict[str, GroupRows] = field(default_factory=dict)

    def local(self, group: Group) -> GroupTable:
        if group.head.name not in self.made:
            self.made[group.head.name] = self._rows(group, self._composites(group))
        rows = self.made[group.head.name]
        assign = np.array([row for row, _ in rows.rows], dtype=np.int16)
        assign = assign.reshape(-1, self.mesh.num_axes)
        table = self.computing(group, GroupTable.unpriced(rows.composites, assign))
        none = chosen_axes((), self.mesh)
        for port in filter(self._is_trained, group.sources):
            for rows, prices, stage, stored in self._split(group, port, table):
                whole = prices.memory_bytes(0, prices.stored(none), 1.0)
                table.memory_bytes[rows] += (
                    prices.memory_bytes(stage, stored, float(stage < 3)) - whole
                )
        return table

    def _sync_seconds(self, group: Group, table: GroupTable) -> NDArray[np.float64]:
        """Seconds in which gradients are added up, and what storing parameters split costs."""
        seconds = np.zeros(len(table.assign))
        for port in filter(self._is_trained, group.sources):
            whole_s = self._whole_seconds(group, port, table)
            for rows, prices, stage, stored in self._split(group, port, table):
                whole_s[rows] = prices.seconds(stage, stored, self.micro_batches, whole_s[rows])
            seconds += whole_s
        return seconds

    def _split(
        self, group: Group, port: Port, table: GroupTable
    ) -> Iterator[tuple[Rows, StoragePrices, int, Codes]]:
        """(rows, their prices, stage, placements) by stages, where the parameter is split."""
        storages, which = self.made[group.head.name].storages
        stages = np.array([storage.stage for storage in storages])[which]
        chosen = np.array([chosen_axes(storage.axes, self.mesh) for storage in storages])[which]
        every, op = self._storage_prices(port, table), self.graph.spec(group.ops[port.op])
        for stage in sorted(set(stages[stages > 0].tolist())):
            rows = np.flatnonzero(stages == stage)
            prices = every.some(rows)
            stored = prices.stored(chosen[rows])
            yield rows, prices, stage_at(op, port.index, stage), stored

    def _rows(self, group: Group, composites: tuple[CompositeSignature, ...]) -> GroupRows:
        """The group's strategies in every scheme: one composite on data, one on tensor axes."""
        numbers = range(len(composites))
        batch = [n for n in numbers if splits_only_batch(self.graph, group, composites[n])]
        free = [n for n in numbers if not _takes_partial(composites[n])] or list(numbers)
        by_letter = {ANY: free}
        if has_weight(self.graph, group):
            for n in numbers:
                by_letter.setdefault(letter_of(group, composites[n]), []).append(n)
        # A parameter of several uses is a group: how it leaves is how it is stored.
        is_param = group.head.kind == "param"
        split = [n for n in free if composites[n].divides_work] if is_param else batch
        even = self._even_pairs(group, composites)
        rows = GroupRows(composites)
        for k, tensor_axes in enumerate(self.topologies):
            data_axes = tuple(a for a in range(self.mesh.num_axes) if a not in tensor_axes)

            is_tensor = np.isin(np.arange(self.mesh.num_axes), tensor_axes)

            def pairs(
                on_data: Sequence[int],
                on_tensor: Sequence[int],
                even: NDArray[np.bool_] = even[k],
                is_tensor: NDArray[np.bool_] = is_tensor,
            ) -> Assignments:
                # one row does not divide, nor need it where no axis is a data axis
                on_data = numbers[:1] if is_tensor.all() else on_data
                found = [(d, t) for d in on_data for t in on_tensor if even[d, t]]
                d, t = np.array(found, dtype=np.int16).reshape(-1, 2, 1).transpose(1, 0, 2)
                return np.where(is_tensor, t, d)

            for is_split in (False, True):
                stages = (1, 2) if self.micro_batches > 1 else (2,)
                stored = [Storage(stage, data_axes) for stage in stages]
                storages = stored if is_split and group.sources else [WHOLE]
                for letter, numbered in by_letter.items():
                    # A product that its letter does not divide is planned freely (experts
                    # are not: another topology divides them), a parameter is stored whole.
                    tries = [(split if is_split else batch, numbered), (batch, numbered)]
                    tries += [(batch, free)] if letter != EXPERTS else []
                    made = (pairs(d, t) for d, t in tries)
                    found = next((m for m in made if len(m)), _NO_ROWS)
                    rows.add(Section(tensor_axes, letter, is_split), found, storages)
        if not rows.rows:  # no scheme divides this group; the table must not be empty
            whole = next(n for n in numbers if not composites[n].divides_work)
            rows.rows[(whole,) * self.mesh.num_axes, WHOLE] = 0
        return rows

    def _even_pairs(
        self, group: Group, composites: Sequence[CompositeSignature]
    ) -> NDArray[np.bool_]:
        """[topology, composite on data axes, composite on tensor axes] that divide evenly."""
        count, axes = len(composites), self.mesh.num_axes
        is_tensor = np.array(
            [[a in tensor_axes for a in range(axes)] for tensor_axes in self.topologies], bool
        ).reshape(-1, axes)
        d, t = np.indices((count, count), dtype=np.int16)
        assign = np.where(is_tensor[:, None, None], t[..., None], d[..., None])
        even = self._even(group, composites)(assign.reshape(-1, axes))
        return even.reshape(len(self.topologies), count, count)


def _takes_partial(composite: CompositeSignature) -> bool:
    return any(p.is_partial for p in composite.signatures[-1].ins)


@dataclass
class _UnionBuilder(TableBuilder):
    topologies: tuple[Axes, ...] = ()
    made: dict[str, GroupRows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.union = UnionTables(
            self.graph,
            self.model,
            self.space,
            self.prices,
            self.again,
            self.micro_batches,
            self.topologies,
            self.made,
        )
        self.tables = self.union


@dataclass(frozen=True)
class VariantTables(Tables):
    """The tables of one scheme.

    stored: for each node table and strategy, how the parameters are stored
    """

    stored: tuple[tuple[Storage, ...], ...] = ()

    def storage(self, choice: Choice, group: int) -> Storage:
        return self.stored[self.problem.nodes[self.variables[group]]][self.strategy(choice, group)]


class SchemeTables:
    """The tables of all schemes for the graph of `grouping` (with forks, of one micro-batch).

    made: of each group its rows, shared by tables of one graph; those that lack are added
    """

    def __init__(
        self, grouping: Grouping, again: Recomputation, model: CostModel, micro_batches: int,
        prices: CoarsePrices, topologies: Sequence[Axes], letters: Letters,
        made: dict[str, GroupRows],
    ) -> None:  # fmt: skip
        self._builder = _UnionBuilder(
            grouping,
            model,
            micro_batches,
            Space(),
            prices,
            again,
            topologies=tuple(topologies),
            made=made,
        )
        self._builder.prepare()
        self.micro_batches = micro_batches
        # The table of each variable, and the letter that each family asks of its product.
        variables = range(len(self._builder.nodes))
        self._label_of = {
            family: [self._label(variable, chosen) for variable in variables]
            for family, chosen in letters.items()
        }
        self._counts = {family: Counter(labels) for family, labels in self._label_of.items()}

    @cached_property
    def tables(self) -> Tables:
        """All schemes' tables with the prices of communication, which take long to compute."""
        return self._builder.build()

    def divides(self, variant: Variant) -> bool:
        """True if the scheme's data axes divide every group of operators."""
        return all(len(self._rows(label, variant)) for label in self._labels(variant))

    def computing_s(self, variant: Variant) -> float:
        """Seconds of computation that no plan of the scheme falls below, whatever it hides.

        Without it GPT-0.35B on 2x8 devices and its known schemes are planned in twice the time:
        schemes that run blocks again hide much, and are slower than those that do not.
        """
        tables = self._builder.group_tables
        least_s = (
            count * float(tables[label[0]].compute_s[self._rows(label, variant)].min())
            for label, count in self._labels(variant).items()
        )
        return self.micro_batches * sum(least_s)

    def of_variant(self, variant: Variant) -> Tables:
        """The search problem of one scheme, which has to divide every group of operators."""
        whole, labels = self.tables.problem, self._label_of[variant.family.name]
        rows_of = {label: self._rows(label, variant) for label in self._labels(variant)}
        node_of = {label: number for number, label in enumerate(rows_of)}
        edge_of: dict[tuple[int, Label, Label], int] = {}
        edges = []
        for edge in whole.edges:
            key = edge.table, labels[edge.first], labels[edge.second]
            number = edge_of.setdefault(key, len(edge_of))
            edges.append(Edge(edge.first, edge.second, number))
        ats = [(table, np.ix_(rows_of[one], rows_of[other])) for table, one, other in edge_of]
        problem = Problem(
            node_cost=tuple(whole.node_cost[label[0]][at] for label, at in rows_of.items()),
            node_memory=tuple(whole.node_memory[label[0]][at] for label, at in rows_of.items()),
            edge_cost=tuple(whole.edge_cost[table][at] for table, at in ats),
            edge_memory=tuple(whole.edge_memory[table][at] for table, at in ats),
            nodes=tuple(node_of[label] for label in labels),
            edges=tuple(edges),
            heavy=whole.heavy,
            memory_limit=whole.memory_limit,
        )
        groups = tuple(self.tables.groups[label[0]].some(at) for label, at in rows_of.items())
        stored = tuple(
            tuple(self._keys(number)[row][1] for row in at.tolist())
            for (number, _), at in rows_of.items()
        )
        tables = self.tables
        return VariantTables(
            tables.grouping,
            problem,
            groups,
            tables.variables,
            tables.model,
            tables.micro_batches,
            tables.again,
            stored=stored,
        )

    def _keys(self, number: int) -> list[tuple[tuple[int, ...], Storage]]:
        return list(self._builder.union.made[self._builder.owners[number].head.name].rows)

    def memory_of(self, variant: Variant) -> Iterator[tuple[int, dict[Hashable, float]]]:
        """For each kind of group how many there are, and the bytes of its strategies."""
        for label, count in self._labels(variant).items():
            number, _ = label
            keys, memory = self._keys(number), self._builder.group_tables[number].memory_bytes
            yield count, {keys[row]: float(memory[row]) for row in self._rows(label, variant)}

    def _label(self, variable: int, letters: Mapping[str, str]) -> Label:
        group = self._builder.grouping.groups[variable]
        named = [letters[op.name] for op in group.ops if op.name in letters]
        return self._builder.nodes[variable], named[-1] if named else ANY

    def _labels(self, variant: Variant) -> Counter[Label]:
        return self._counts[variant.family.name]

    def _rows(self, label: Label, variant: Variant) -> Rows:
        number, letter = label
        sections = self._builder.union.made[self._builder.owners[number].head.name].sections
        wanted = Section(variant.tensor_axes, letter, variant.family.split_stored)
        return sections.get(wanted, sections[dataclasses.replace(wanted, letter=ANY)])


def least_memories(
    known: Sequence[SchemeTables], counts: Sequence[int], variant: Variant
) -> NDArray[np.float64]:
    """For each of `counts` numbers of micro-batches M the least bytes of the scheme.

    known: tables at the first of `counts`; at three of them if there are more

    A scheme that does not divide a group at some M takes infinitely many there.

    Parameters do not depend on M, activations are inversely proportional to it: with two tables of
    different M, that of every strategy is a line in 1 / M, and the bytes at any other M follow. One
    micro-batch is apart, as it accumulates nothing.
    """
    total = np.zeros(len(counts))
    for position, tables in enumerate(known):
        sizes = tables.memory_of(variant)
        total[position] = sum(count * min(one.values(), default=np.inf) for count, one in sizes)
    rest = np.array(counts[len(known) :], dtype=np.float64)
    if not len(rest):
        return total
    first, second = known[-2:]
    apart = 1 / first.micro_batches - 1 / second.micro_batches
    both_sizes = zip(first.memory_of(variant), second.memory_of(variant), strict=True)
    for (count, one), (_, other) in both_sizes:
        both = [key for key in one if key in other]
        if not both:  # what divides at one size does not at the other
            both, other = list(one), one
        if not both:
            total[len(known) :] = np.inf
            break
        here = np.array([one[key] for key in both])[:, None]
        there = np.array([other[key] for key in both])[:, None]
        slope = (here - there) / apart
        lines = here + slope * (1 / rest - 1 / first.micro_batches)
        total[len(known) :] += count * lines.min(axis=0)
    return total
