"""What the tables say of memory beside each group's own bytes.

**The gradients of the last products.** Those of the last product of a block that is run again count
for its group. Of the whole graph's

    max( gradients of the product - what its reader keeps, gradients of its reader )

(`cost.memory`) depends on the strategies of both: it belongs to the edge between their groups,
or to the group of both. It is added to the tables' bytes where it counts.

**A lower bound**, bytes that each device needs at least, however evenly a graph is divided:
parameters with their state, and what is kept for the backward pass, shared by all devices. A tensor
with e dims that grow with the batch has in M micro-batches, one at a time, the M**e-th part of its
bytes, so that one look at the graph tells of all M. Gradients of parameters count beside what is
kept in several micro-batches, where they are added up; in one the larger of the two does.

That is a bound of what the tables add up. In 16 bits autoddl's executor holds more, a gradient of
each master copy, but none of the outputs that nothing reads again: `least_at_turn` bounds that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cost.liveness import STATE_BYTES, StepTape
from ...cost.memory import (
    Kept,
    beside_shares,
    last_counts,
    last_product,
    lasting_shares,
    reader_of,
)
from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...cost.step_tensors import PlannedStep
from ...graph.graph import Graph, Op
from ...graph.placed import PlannedOp
from ...sbp.placement import NdSbp
from ...search.problem import Table
from .group_table import GroupTables, grad_in, grad_out
from .groups import Group, Grouping, rule_of
from .storage_table import GroupTable


@dataclass(frozen=True)
class LastMemory:
    tables: GroupTables
    grouping: Grouping

    @cached_property
    def _product(self) -> Op | None:
        return last_product(self.tables.graph)

    @cached_property
    def _reader(self) -> Op | None:
        """What reads the product's output, if its group is the product's or reads from that."""
        if self._product is None:
            return None
        reader = reader_of(self.tables.graph, self._product)
        if reader is None:
            return None
        group = self.grouping.groups[self.grouping.owner[reader.name]]
        names = {op.name for op in group.ops}
        read = {self.tables.graph.producers[port.tensor].name for port in group.inputs}
        return reader if self._product.name in names | read else None

    @cached_property
    def groups(self) -> frozenset[int]:
        """Numbers of the groups that are concerned, which have tables of their own."""
        last = [op.name for op in (self._product, self._reader) if op is not None]
        return frozenset(
            self.grouping.owner[name] for name in (*last, *self.tables.again.last_products)
        )

    def of_group(self, group: Group, table: GroupTable) -> GroupTable:
        """`table` with what depends on the one group alone."""
        for op in group.ops:
            if op.name in self.tables.again.last_products:
                added = self.tables.again.weight(op.name) * self._gradients(group, table, op)
                table = dataclasses.replace(table, memory_bytes=table.memory_bytes + added)
        if self._product not in group.ops or not self._counts:
            return table
        added = self._gradients(group, table, self._product)
        if self._reader in group.ops:
            added = np.maximum(
                added - self._kept(group, table, self._reader),
                self._gradients(group, table, self._reader),
            )
        elif self._reader is not None:
            return table
        return dataclasses.replace(table, memory_bytes=table.memory_bytes + added)

    def of_edge(
        self, maker: Op, given: tuple[Group, GroupTable], wanted: tuple[Group, GroupTable]
    ) -> Table | None:
        """[given's, wanted's] bytes of the edge from operator `maker`; None for all but one."""
        if maker != self._product or self._reader not in wanted[0].ops or not self._counts:
            return None
        product = self._gradients(*given, maker)
        reader, kept = self._gradients(*wanted, self._reader), self._kept(*wanted, self._reader)
        return np.maximum(product[:, None] - kept, reader)

    @property
    def _counts(self) -> bool:
        tables = self.tables
        return last_counts(tables.micro_batches, bool(tables.again.blocks))

    def _kept(self, group: Group, table: GroupTable, op: Op) -> Table:
        spec, number = self.tables.graph.spec(op), group.ops.index(op)
        outs = np.zeros(len(table.assign))
        for i, tensor in enumerate(spec.outputs if self.tables.kept.holds(op) else ()):
            codes = table.codes(lambda c, i=i: c.signatures[number].outs[i])
            outs += self.tables.held_bytes(tensor, codes)
        return outs + self.tables.extra_bytes(spec, number, table, lasting_shares(spec))

    def _gradients(self, group: Group, table: GroupTable, op: Op) -> Table:
        """Bytes of the gradients of its outputs and inputs, and of its own backward pass."""
        tables, number = self.tables, group.ops.index(op)
        graph, spec = tables.graph, tables.graph.spec(op)
        shares = np.subtract(beside_shares(spec), lasting_shares(spec))
        found = tables.extra_bytes(spec, number, table, (float(shares[0]), float(shares[1])))
        taken = [(i, t, grad_out) for i, t in enumerate(op.outputs) if t in graph.needs_grad]
        given = [
            (i, t, grad_in) for i, t in enumerate(op.inputs) if (op.name, i) in graph.gives_grad
        ]
        for i, tensor, side in (*taken, *given):
            codes = table.codes(lambda c, i=i, of=side: of(c.signatures[number], i))
            found += tables.held_bytes(graph.tensors[tensor].spec, codes)
        return found


@dataclass(frozen=True)
class LeastBytes:
    """growing: exponent of the batch -> bytes of what grows so.

    gradients: of the trained parameters, once
    masters: of one float32 copy of the parameters that are shorter and trained
    """

    growing: Mapping[int, float]
    gradients: float
    masters: float

    @staticmethod
    def of(graph: Graph, model: CostModel, again: Recomputation) -> LeastBytes:
        growing: dict[int, float] = {}
        sizes: dict[int, list[tuple[int, int]]] = {}  # exponents and bytes of operators alike
        kept = Kept.of(graph, model, again)
        for op in graph.ops:
            copies, alike = _copies(graph, model, again, op, kept), graph.alike[op.name]
            if copies and alike not in sizes:
                made = map(graph.tensors.__getitem__, op.outputs)
                sizes[alike] = [(len(t.batch_dims), t.spec.bytes) for t in made]
            for exponent, size in sizes[alike] if copies else ():
                known = growing.get(exponent, 0.0)
                growing[exponent] = known + copies * size / model.memory_devices
        trained = [
            graph.tensors[name].spec
            for op in graph.params
            for name in op.outputs
            if name in graph.needs_grad
        ]
        masters = sum(
            STATE_BYTES / t.item_bytes * t.bytes for t in trained if t.item_bytes < STATE_BYTES
        )
        gradients = sum(t.bytes for t in trained) / model.memory_devices
        return LeastBytes(growing, gradients, masters / model.memory_devices)

    def within(self, micro_batches: int) -> float:
        """The bytes with the graph's batch cut into so many micro-batches.

        In one, gradients of parameters come as activations go.
        """
        sizes = {power: size / micro_batches**power for power, size in self.growing.items()}
        whole = sum(sizes.values())
        return (
            whole if micro_batches > 1 else whole - min(self.gradients, whole - sizes.get(0, 0.0))
        )


def _copies(graph: Graph, model: CostModel, again: Recomputation, op: Op, kept: Kept) -> float:
    """How often the outputs of an operator count."""
    has_grad = not graph.needs_grad.isdisjoint(op.outputs)
    if op.kind == "param":
        return model.parameter_copies if has_grad else 1
    if op.kind == "input":
        return bool(graph.consumers[op.outputs[0]])
    if not kept.holds(op):
        return 0
    return again.output_weight(op)


def least_bytes(graph: Graph, model: CostModel, again: Recomputation | None = None) -> float:
    """`LeastBytes` of a graph at its own batch, that of one of several micro-batches."""
    return sum(LeastBytes.of(graph, model, again or Recomputation(graph)).growing.values())


def least_at_turn(again: Recomputation, model: CostModel, micro_batches: int) -> float:
    """Bytes that autoddl's executor holds at least as the backward pass of a micro-batch begins.

    That is what is there all the time, and of what the forward pass has made that which is read
    again, all shared by all devices. What is read may be another place's copy of a view: of a
    tensor and its views, and copies of these, the largest that is read counts, once, by the bytes
    of the least that it was on its way.
    """
    graph, mesh = again.graph, model.cluster.mesh
    sizes = model.cluster.device.kind, micro_batches, model.optimizer
    ops = {op.name: _undivided(graph, op, mesh.num_axes) for op in graph.ops}
    step = PlannedStep(graph, mesh, *sizes, ops, {}, again, ema=model.ema)
    tape = StepTape(step, operators=model.memory_rules.operators).build()
    way: dict[str, tuple[str, int]] = {}  # tensor -> the first one that it is a view of, bytes
    for op in graph.ops:
        before = way.get(op.inputs[0]) if op.inputs and rule_of(op).is_view else None
        for name in op.outputs if op.kind not in ("param", "buffer", "input") else ():
            size = graph.tensors[name].spec.bytes
            way[name] = (before[0], min(before[1], size)) if before else (name, size)
    read: dict[str, int] = {}
    for name in (name for action in tape.actions[tape.turn :] for name in action.reads):
        if name in way:
            first, size = way[name]
            read[first] = max(read.get(first, 0), size)
    return (sum(tape.always.values()) + sum(read.values())) / model.memory_devices


def _undivided(graph: Graph, op: Op, num_axes: int) -> PlannedOp:
    """Every device has all of each tensor."""
    whole = NdSbp.broadcast(num_axes)
    grad_outs = tuple(whole if name in graph.needs_grad else None for name in op.outputs)
    numbers = range(len(op.inputs))
    grad_ins = tuple(whole if (op.name, n) in graph.gives_grad else None for n in numbers)
    return PlannedOp((whole,) * len(op.inputs), (whole,) * len(op.outputs), grad_outs, grad_ins)
