"""The table of a group, and the storages of its parameters as a second, dependent choice.

A `GroupTable` has the strategies of a group with the seconds and bytes of each, edges left out.

How parameters are stored concerns nothing but their own seconds and bytes. So a group with trained
parameters has a variable beside its strategy whose only edge leads to it:

    edge[s, k] = (seconds, bytes) of the k-th storage of strategy s

which elimination folds into the group's own table, at any price of memory. Per strategy the
storages stand in ascending order of seconds and descending order of bytes, those that another one
dominates left out; `which` says what the k-th is. The first is whole storage, which costs least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ...cost.model import StepPrice
from ...cost.sharded_storage import WHOLE, Storage, StoragePrices, chosen_axes, stage_at
from ...graph.placed import PlannedOp
from ...sbp.placement import Placement
from ...sbp.signature import OpSpec
from ...search.problem import Edge, Problem, Table
from .groups import CompositeSignature
from .strategies import Assignments

Codes = NDArray[np.int8]
Times = tuple[Table, Table | None]  # seconds of an operator: of both passes, of the forward one


@dataclass(frozen=True)
class StoragePort:
    """Input `index` of an operator that is a trained parameter with one reader.

    passes: forward passes of the operator for each micro-batch
    held:   how much counts of what stage 3 gathers for the operator
    price, late: of a step that overlaps, as `StoragePrices.seconds` takes them
    """

    op: OpSpec
    index: int
    prices: StoragePrices
    passes: int
    held: float
    price: StepPrice | None = None
    late: float = 0.0
    _stored: dict[tuple[int, ...], Codes] = field(default_factory=dict, repr=False, compare=False)

    def some(self, rows: NDArray[np.int64]) -> StoragePort:
        """For these strategies only."""
        stored = {axes: codes[rows] for axes, codes in self._stored.items()}
        return replace(self, prices=self.prices.some(rows), _stored=stored)

    def stored(self, axes: tuple[int, ...]) -> Codes:
        """Its placements [strategies, axis] if these axes may split it."""
        if axes not in self._stored:
            self._stored[axes] = self.prices.stored(chosen_axes(axes, self.prices.comm.mesh))
        return self._stored[axes]

    def stage(self, storage: Storage) -> int:
        return stage_at(self.op, self.index, storage.stage)

    def memory_bytes(self, storage: Storage) -> Table:
        stage, stored = self.stage(storage), self.stored(storage.axes)
        held = self.held if stage == 3 else 1.0
        return self.prices.memory_bytes(stage, stored, held)

    def seconds(self, storage: Storage, micro_batches: int, whole_s: Table) -> Table:
        stage, stored = self.stage(storage), self.stored(storage.axes)
        often = micro_batches, whole_s, self.passes
        return self.prices.seconds(stage, stored, *often, self.price, self.late)


@dataclass(frozen=True)
class StorageTable:
    """[strategies, k] seconds an iteration and bytes of the storages that are worth a choice."""

    storages: tuple[Storage, ...]
    which: NDArray[np.int64]
    seconds: Table
    memory_bytes: Table

    def pick(self, strategy: int, k: int) -> Storage:
        return self.storages[self.which[strategy, k]]


@dataclass(frozen=True)
class GroupTable:
    """All strategies of a group: `assign[k, axis]` numbers its composite signature there.

    times:   (both passes, the forward one) seconds of each operator that computes
    ports:   trained parameters that may be stored split, which then count neither in `sync_s` nor
             in `memory_bytes`; `storages`: how
    whole_s: of each port, seconds of the synchronisation of its gradient if it is stored whole
    storage: of all ports
    """

    composites: tuple[CompositeSignature, ...]
    assign: Assignments
    compute_s: Table
    inner_s: Table
    sync_s: Table
    memory_bytes: Table
    ports: tuple[StoragePort, ...] = ()
    storages: tuple[Storage, ...] = (WHOLE,)
    whole_s: tuple[Table, ...] = ()
    storage: StorageTable | None = None
    times: tuple[Times, ...] = ()

    @staticmethod
    def unpriced(composites: tuple[CompositeSignature, ...], assign: Assignments) -> GroupTable:
        """The strategies with seconds and bytes of zero."""
        nothing = np.zeros(len(assign))
        return GroupTable(composites, assign, nothing, nothing, nothing, nothing)

    def placing(self, placed: Sequence[PlannedOp | None]) -> NDArray[np.bool_]:
        """Mask of the strategies that place inputs and outputs of each operator as these do."""
        mask = np.ones(len(self.assign), dtype=bool)
        for number, own in enumerate(placed):
            for index, nd in enumerate(own.ins if own else ()):
                codes = self.codes(lambda c, n=number, i=index: c.signatures[n].ins[i])
                mask &= (codes == nd.codes).all(axis=1)
            for index, nd in enumerate(own.outs if own else ()):
                codes = self.codes(lambda c, n=number, i=index: c.signatures[n].outs[i])
                mask &= (codes == nd.codes).all(axis=1)
        return mask

    def some(self, rows: NDArray[np.int64]) -> GroupTable:
        """The table of these strategies only, before storages are priced."""
        assert self.storage is None
        return GroupTable(
            self.composites,
            self.assign[rows],
            self.compute_s[rows],
            self.inner_s[rows],
            self.sync_s[rows],
            self.memory_bytes[rows],
            tuple(port.some(rows) for port in self.ports),
            self.storages,
            tuple(seconds[rows] for seconds in self.whole_s),
        )

    @cached_property
    def least_bytes(self) -> Table:
        """[strategies] with the parameters stored as small as may be."""
        if not self.ports:
            return self.memory_bytes
        return self.memory_bytes + self.stored_bytes.min(axis=1)

    @cached_property
    def stored_bytes(self) -> Table:
        """[strategies, storages] of the parameters of all ports."""
        return memory_table(self.ports, self.storages)

    def codes(self, label: Callable[[CompositeSignature], Placement]) -> Codes:
        """Placement codes [strategies, axes] of the tensor that `label` picks from a composite."""
        codes = np.array([label(c).code for c in self.composites], dtype=np.int8)
        return codes[self.assign]


def memory_table(ports: Sequence[StoragePort], storages: Sequence[Storage]) -> Table:
    """[strategies, storages] bytes of all parameters of a group."""
    return np.stack([sum(port.memory_bytes(storage) for port in ports) for storage in storages], 1)


def storage_table(
    ports: Sequence[StoragePort],
    storages: tuple[Storage, ...],
    micro_batches: int,
    stored_bytes: Table,
    whole_s: Sequence[Table],
) -> StorageTable:
    """All storages of a group, priced, without those that others dominate.

    stored_bytes: the `memory_table`
    whole_s: seconds of the synchronisation of each port's gradient if it is stored whole
    """
    assert storages[0] == WHOLE
    pairs = list(zip(ports, whole_s, strict=True))
    columns = [sum(p.seconds(storage, micro_batches, s) for p, s in pairs) for storage in storages]
    return _undominated(storages, np.stack(columns, axis=1), stored_bytes)


def _undominated(storages: tuple[Storage, ...], seconds: Table, memory: Table) -> StorageTable:
    order = np.lexsort((memory, seconds), axis=1)
    # whole storage first, whatever else costs as little
    order = np.take_along_axis(order, np.argsort(order != 0, axis=1, kind="stable"), axis=1)
    memory = np.take_along_axis(memory, order, axis=1)
    before = np.minimum.accumulate(memory, axis=1)
    keeps = np.ones(memory.shape, dtype=bool)
    keeps[:, 1:] = memory[:, 1:] < before[:, :-1] * (1 - 1e-9)
    rank = np.cumsum(keeps, axis=1) - 1
    width = int(rank.max()) + 1
    which = np.zeros((len(memory), width), dtype=np.int64)
    last = np.zeros(len(memory), dtype=np.int64)
    for k in range(width):  # rows with fewer repeat their last one
        at = keeps & (rank == k)
        last = np.where(at.any(axis=1), at.argmax(axis=1), last)
        which[:, k] = last
    rows = np.arange(len(memory))[:, None]
    seconds = np.take_along_axis(seconds, order, axis=1)
    return StorageTable(storages, order[rows, which], seconds[rows, which], memory[rows, which])


def with_storage(
    problem: Problem, tables: Sequence[StorageTable | None]
) -> tuple[Problem, tuple[int, ...]]:
    """The problem with a variable after each that has parameters, and the variables' new numbers.

    tables: by node table number; None where nothing is stored or nothing may be split
    """
    found = [table for table in tables if table is not None]
    zeros = [np.zeros(table.which.shape[1]) for table in found]
    stored = tuple(number for number, table in enumerate(tables) if table is not None)
    sizes = len(tables), len(problem.edge_cost)
    nodes, edges, variables = _with_leaves(problem.nodes, problem.edges, stored, sizes)
    extended = replace(
        problem,
        node_cost=(*problem.node_cost, *zeros),
        node_memory=(*problem.node_memory, *zeros),
        edge_cost=(*problem.edge_cost, *(t.seconds for t in found)),
        edge_memory=(*problem.edge_memory, *(t.memory_bytes for t in found)),
        nodes=nodes,
        edges=edges,
        heavy=frozenset(variables[v] for v in problem.heavy),
    )
    return extended, variables


@lru_cache(maxsize=8)
def _with_leaves(
    nodes: tuple[int, ...], edges: tuple[Edge, ...], stored: tuple[int, ...], sizes: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[Edge, ...], tuple[int, ...]]:
    """Nodes and edges with a leaf at each variable of these node tables; its number of each.

    sizes: numbers of node and edge tables; the leaves' own come after these
    """
    leaf_of = {table: (sizes[0] + n, sizes[1] + n) for n, table in enumerate(stored)}
    found: list[int] = []
    variables: list[int] = []
    leaves: list[Edge] = []
    for table in nodes:
        variables.append(len(found))
        found.append(table)
        if table in leaf_of:
            node, edge = leaf_of[table]
            leaves.append(Edge(len(found) - 1, len(found), edge))
            found.append(node)
    moved = [Edge(variables[first], variables[second], table) for first, second, table in edges]
    return tuple(found), (*moved, *leaves), tuple(variables)
