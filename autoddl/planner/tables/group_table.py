"""Makes the table of a group: its strategies, and their seconds and bytes, edges left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cost.memory import Kept, is_shared, lasting_shares
from ...cost.model import CostModel
from ...cost.operators import Divided, inner_seconds, reduced_spec
from ...cost.recompute import Recomputation
from ...cost.sharded_storage import WHOLE, Storage, StoragePrices, storages, stored_placement
from ...graph.graph import Graph
from ...sbp.edges import mask_axes
from ...sbp.layout import TensorSpec, even_bytes_of, num_parts
from ...sbp.mesh import Mesh
from ...sbp.placement import B, Placement, S
from ...sbp.signature import OpSpec, Signature
from ...search.problem import Table
from .groups import CompositeSignature, Group, Port, composite_signatures, rule_of
from .hinted import Hinted
from .pair_prices import Prices
from .storage_table import (
    Codes,
    GroupTable,
    StoragePort,
    StorageTable,
    Times,
    memory_table,
    storage_table,
)
from .strategies import DEFAULT_CAP, Assignments, Even, assignments


class NoStrategy(ValueError):
    """The space leaves a group without a strategy."""


@dataclass(frozen=True)
class Space:
    """Which strategies are searched.

    allowed:           (group, composite signature, axis) -> whether a strategy may use it there
    strict:            a group that `allowed` leaves without a strategy is an error, else it is free
    min_weight_shards: devices over which each parameter of two dims or more is split at least
    split_channels:    whether convolutions may be split by channels although their batch divides
                       over all devices; AutoDDL section 4.5 keeps such convolutions data parallel
    cap:               strategies of one group, see `space.assignments`
    zero:              parameters may be stored split over axes that replicate them (ZeRO), see
                       `cost.sharded_storage`
    one_axis:          all axes of the mesh have one signature, as if they were one axis
    """

    allowed: Callable[[Group, CompositeSignature, int], bool] | None = None
    strict: bool = True
    min_weight_shards: int = 1
    split_channels: bool = False
    cap: int = DEFAULT_CAP
    zero: bool = False
    one_axis: bool = False


WHOLE_SPACE = Space(zero=True)


@dataclass(frozen=True)
class GroupTables:
    """Makes the tables of the groups of `graph`; `again`: which blocks are run again."""

    graph: Graph
    model: CostModel
    space: Space
    prices: Prices
    again: Recomputation
    micro_batches: int = 1

    @cached_property
    def mesh(self) -> Mesh:
        return self.model.cluster.mesh

    def local(self, group: Group) -> GroupTable:
        """The group's strategies with what needs no communication to price."""
        hints = Hinted(self.graph, self.mesh, group)
        composites = hints.allowed(self._composites(group))
        dispensable = frozenset(
            n
            for n, c in enumerate(composites)
            if c.takes_partial or (rule_of(group.head).heavy and not c.divides_work)
        )
        leading = frozenset(n for n, c in enumerate(composites) if c.splits_batch)
        copies = frozenset(n for n, c in enumerate(composites) if not c.divides_work)

        even = self._even(group, composites)
        min_shards = self.space.min_weight_shards

        def shards(assign: Assignments) -> NDArray[np.bool_]:
            mask = even(assign)
            if assign.shape[1] == self.mesh.num_axes:
                mask &= self._shards_weights(group, composites, assign)
            return mask

        divides = shards if min_shards > 1 else even

        obeys = hints.mask(composites)

        def feasible(assign: Assignments) -> NDArray[np.bool_]:
            mask = divides(assign) & obeys(assign)
            for axis in range(assign.shape[1] if usable else 0):
                mask &= np.array(usable[axis])[assign[:, axis]]
            if self.space.one_axis:
                mask &= (assign == assign[:, :1]).all(axis=1)
            return mask

        allowed, cap = self.space.allowed, self.space.cap
        usable = (
            [[allowed(group, c, a) for c in composites] for a in range(self.mesh.num_axes)]
            if allowed is not None
            else []
        )
        kinds = len(composites), leading, dispensable, self.mesh
        restricted = usable or group.demands or self.space.one_axis
        assign = assignments(*kinds, feasible if restricted else divides, cap, copies)
        if not len(assign) and group.demands:
            raise NoStrategy(hints.refusal(self._composites(group), self._even))
        if not len(assign) and not self.space.strict:
            assign = assignments(*kinds, divides, cap, copies)
        if not len(assign):
            raise NoStrategy(
                f"no strategy is left for {group.head.name!r} ({group.head.kind}) on the mesh "
                f"{self.mesh}: no allowed split divides its tensors "
                f"{', '.join(str(self.graph.tensors[i].spec) for i in group.head.inputs)} evenly"
            )
        table = self.computing(group, GroupTable.unpriced(composites, assign))
        ports = self._storage_ports(group, table)
        return dataclasses.replace(table, ports=ports, storages=self.storages)

    def at_price(self, group: Group, table: GroupTable) -> GroupTable:
        """`local`, from such a table of serial steps."""
        pairs = zip(self._trained(group), table.ports, strict=True)
        ports = (self._at_price(group, *pair) for pair in pairs)
        compute_s = self._compute_seconds(group, table.times, len(table.assign))
        return dataclasses.replace(table, compute_s=compute_s, ports=tuple(ports))

    def _composites(self, group: Group) -> tuple[CompositeSignature, ...]:
        composites = composite_signatures(self.graph, group)
        for number, op in enumerate(group.ops):
            rows = self.graph.spec(op).outputs[0].shape[0] if op.kind == "conv2d" else 0
            if self.space.split_channels or not rows or rows % self.mesh.size:
                continue
            # Of a convolution's output, Partial comes from a split of the input channels.
            composites = tuple(
                c
                for c in composites
                if c.signatures[number].outs[0] in (S(0), B)
                and not c.signatures[number].ins[0].is_partial
            )
        return composites

    def _even(self, group: Group, composites: Sequence[CompositeSignature]) -> Even:
        """Whether a strategy's splits divide every tensor and keep the signatures' limits."""
        splits: list[tuple[NDArray[np.bool_], int]] = []
        for number, op in enumerate(group.ops):
            spec = self.graph.spec(op)
            ports = [(t.shape, "ins", i) for i, t in enumerate(spec.inputs)]
            ports += [(t.shape, "outs", i) for i, t in enumerate(spec.outputs)]
            for shape, side, index in ports:
                codes = np.array(
                    [getattr(c.signatures[number], side)[index].code for c in composites]
                )
                splits += [(codes == dim, size) for dim, size in enumerate(shape)]
            most = [c.signatures[number].limit for c in composites]
            for size in {n for n in most if n is not None}:
                splits.append((np.array([n == size for n in most]), size))
        return Even.of(self.mesh, splits)

    def _shards_weights(
        self, group: Group, composites: Sequence[CompositeSignature], assign: Assignments
    ) -> NDArray[np.bool_]:
        """Strategies that split each weight matrix over at least `min_weight_shards` devices."""
        mask = np.ones(len(assign), dtype=bool)
        for port in group.sources:
            shape = self.graph.tensors[port.tensor].spec.shape
            if self.graph.producers[port.tensor].kind == "param" and len(shape) > 1:
                split = np.array(
                    [c.signatures[port.op].ins[port.index].is_split for c in composites]
                )
                parts = num_parts(split[assign], self.mesh.parts)
                mask &= parts >= self.space.min_weight_shards
        return mask

    @cached_property
    def kept(self) -> Kept:
        return Kept.of(self.graph, self.model, self.again)

    def held_bytes(self, spec: TensorSpec, codes: Codes) -> Table:
        """Local bytes that count as memory."""
        return even_bytes_of(spec, codes, self.model.memory_mesh)

    def computing(self, group: Group, table: GroupTable) -> GroupTable:
        """The table with the seconds of operators, and their bytes."""
        cluster, times = self.model.cluster, list[Times]()
        # of what the first axis divides, so much does not count as memory
        spared = 1 - self.mesh.parts[0] / self.model.memory_mesh.parts[0] if self.mesh.shares else 0
        memory = np.zeros(len(table.assign))
        for number, op in enumerate(group.ops):
            spec = self.graph.spec(op)
            out_bytes, out_first = self._side_bytes(spec.outputs, "outs", number, table)
            held = out_bytes - spared * out_first
            has_grad = any(o in self.graph.needs_grad for o in op.outputs)
            if op.kind == "param":
                copies = self.model.parameter_copies if has_grad else 1
                memory += held * (copies - is_shared(self.graph, op.outputs[0]))
                continue
            in_bytes, in_first = self._side_bytes(spec.inputs, "ins", number, table)
            on = np.array([c.signatures[number].divides_work for c in table.composites])
            on = on[table.assign]
            share, first = num_parts(on, self.mesh.parts), on[:, :1].any(axis=1)
            divided = Divided(share, in_bytes + out_bytes, first, in_first + out_first)
            is_wanted = self.model.overlap or self.again.passes(op.name) > 1
            forward_s = divided.seconds(cluster, self.graph, op, False) if is_wanted else None
            times.append((divided.seconds(cluster, self.graph, op, has_grad), forward_s))
            if op.name in self.kept.makers:
                memory += self.again.output_weight(op) * held
            for index in (n for n in range(len(op.inputs)) if (op.name, n) in self.kept.takers):
                codes = table.codes(lambda c, n=index, at=number: c.signatures[at].ins[n])
                memory += self.again.weight(op.name) * self.held_bytes(spec.inputs[index], codes)
            if has_grad:
                extra = self.extra_bytes(spec, number, table, lasting_shares(spec))
                memory += self.again.weight(op.name) * extra
        for port in group.inputs:
            gives_grad = (group.ops[port.op].name, port.index) in self.graph.gives_grad
            if gives_grad and is_shared(self.graph, port.tensor):
                memory += self._grad_in_bytes(port.tensor, port.op, port.index, table)
        for port in group.sources:
            if not (self._zero and self._is_trained(port)):
                memory += self._source_bytes(port, table)
        compute_s = self._compute_seconds(group, times, len(table.assign))
        return dataclasses.replace(
            table, compute_s=compute_s, memory_bytes=memory, times=tuple(times)
        )

    def _compute_seconds(self, group: Group, times: Sequence[Times], count: int) -> Table:
        """What the operators' `times` count in all."""
        price, each = self.model.price, self.model.computation
        seconds = np.zeros(count)
        running = (op for op in group.ops if op.kind != "param")
        for op, (whole_s, forward_s) in zip(running, times, strict=True):
            again = self.again.passes(op.name) > 1
            off = price.off(op.name) / self.micro_batches if price else 0.0
            seconds += each * whole_s
            if forward_s is not None and (again or off):
                seconds += each * again * forward_s - off * (whole_s - (not again) * forward_s)
        return seconds

    def _side_bytes(
        self, tensors: Sequence[TensorSpec], side: str, number: int, table: GroupTable
    ) -> tuple[Table, Table]:
        """Local bytes of inputs or outputs; if there are shares, of those that these divide."""
        found, first = np.zeros((2, len(table.assign)))
        for i, tensor in enumerate(tensors):
            codes = table.codes(lambda c, i=i: getattr(c.signatures[number], side)[i])
            found += (own := even_bytes_of(tensor, codes, self.mesh))
            if self.mesh.shares:
                first += np.where(codes[:, 0] >= 0, own, 0.0)
        return found, first

    def extra_bytes(
        self, spec: OpSpec, number: int, table: GroupTable, shares: tuple[float, float]
    ) -> Table:
        """Bytes for each byte of the first input, and of the first output (`cost.memory`)."""
        found = np.zeros(len(table.assign))
        of_input, of_output = shares
        if of_input:
            codes = table.codes(lambda c: c.signatures[number].ins[0])
            found += of_input * self.held_bytes(spec.inputs[0], codes)
        if of_output:
            codes = table.codes(lambda c: c.signatures[number].outs[0])
            found += of_output * self.held_bytes(spec.outputs[0], codes)
        return found

    def _grad_in_bytes(self, tensor: str, number: int, index: int, table: GroupTable) -> Table:
        codes = table.codes(lambda c: grad_in(c.signatures[number], index))
        return self.held_bytes(self.graph.tensors[tensor].spec, codes)

    def _is_trained(self, port: Port) -> bool:
        """True for a parameter with a gradient (a source: this operator alone reads it)."""
        is_param = self.graph.producers[port.tensor].kind == "param"
        return is_param and port.tensor in self.graph.needs_grad

    @property
    def _zero(self) -> bool:
        return self.space.zero and self.mesh.num_axes > 0

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        return storages(self.mesh, self.micro_batches) if self._zero else (WHOLE,)

    def _trained(self, group: Group) -> list[Port]:
        """The trained parameters of the group, if they may be stored split."""
        return list(filter(self._is_trained, group.sources if self._zero else ()))

    def _storage_ports(self, group: Group, table: GroupTable) -> tuple[StoragePort, ...]:
        found = []
        for port in self._trained(group):
            prices, op = self._storage_prices(port, table), group.ops[port.op]
            passes = self.again.passes(op.name)
            held = self.again.weight(op.name) if passes > 1 else 0.0
            own = StoragePort(self.graph.spec(op), port.index, prices, passes, held)
            found.append(self._at_price(group, port, own))
        return tuple(found)

    def _at_price(self, group: Group, port: Port, own: StoragePort) -> StoragePort:
        price = self.model.price
        late = price.more(group.ops[port.op].name) if price else 0.0
        return dataclasses.replace(own, price=price, late=late)

    def _storage_prices(self, port: Port, table: GroupTable) -> StoragePrices:
        return StoragePrices(
            self.graph.tensors[port.tensor].spec,
            self.model.comm,
            self.model.memory_mesh,
            self.model.parameter_copies,
            table.codes(lambda c: c.signatures[port.op].ins[port.index]),
            table.codes(lambda c: grad_in(c.signatures[port.op], port.index)),
        )

    def _source_bytes(self, port: Port, table: GroupTable) -> Table:
        producer = self.graph.producers[port.tensor]
        spec = self.graph.tensors[port.tensor].spec
        if producer.kind == "buffer":  # whole, and there once for all its readers
            share = spec.bytes / len(self.graph.consumers[port.tensor])
            return np.full(len(table.assign), share)
        if producer.kind not in ("param", "input"):
            return np.zeros(len(table.assign))
        codes = table.codes(lambda c: stored_placement(c.signatures[port.op].ins[port.index]))
        copies = self.micro_batches if producer.kind == "input" else 1
        if producer.kind == "param" and port.tensor in self.graph.needs_grad:
            copies = self.model.parameter_copies
        return copies * self.held_bytes(spec, codes)

    def priced(self, group: Group, table: GroupTable) -> GroupTable:
        """`local` with the seconds of the group's own communication."""
        inner_s = self.model.moving(self._inner_seconds(group, table))
        if not table.ports:
            return dataclasses.replace(
                table, inner_s=inner_s, sync_s=self._sync_seconds(group, table)
            )
        trained = self._trained(group)
        whole_s = tuple(self._whole_seconds(group, port, table) for port in trained)
        return dataclasses.replace(table, inner_s=inner_s, whole_s=whole_s)

    def storage(self, table: GroupTable) -> StorageTable | None:
        """The storages of a priced table; None if it has no ports."""
        if not table.ports:
            return None
        stored = table.stored_bytes
        if table.storages != self.storages:  # those of one micro-batch
            stored = memory_table(table.ports, self.storages)
        return storage_table(table.ports, self.storages, self.micro_batches, stored, table.whole_s)

    def _inner_seconds(self, group: Group, table: GroupTable) -> Table:
        """All-reduces inside operators, each over the axes that carry the inner signature."""
        seconds = np.zeros(len(table.assign))
        for number, op in enumerate(group.ops):
            inner = [c.signatures[number].inner for c in table.composites]
            if not any(inner):
                continue
            spec = self.graph.spec(op)
            has_grad = any(o in self.graph.needs_grad for o in op.outputs)
            which = next(i for i in inner if i is not None)
            codes = table.codes(lambda c, n=number, i=which.tensor: c.signatures[n].ins[i])
            codes = np.where(np.isin(codes, which.dims), np.int8(B.code), codes)
            local = even_bytes_of(reduced_spec(spec, which), codes, self.mesh)
            carries = np.array([i is not None for i in inner])[table.assign]
            masks = carries @ (1 << np.arange(self.mesh.num_axes))
            for mask in np.unique(masks).tolist():
                where = mask_axes(mask)
                if where:
                    at = masks == mask
                    prices = self.model.comm, which, where, local[at]
                    seconds[at] += inner_seconds(*prices, has_grad)
                    if self.again.passes(op.name) > 1:
                        seconds[at] += inner_seconds(*prices, False)
        return seconds

    def _sync_seconds(self, group: Group, table: GroupTable) -> Table:
        """Gradient synchronisation of the single-use parameters, once an iteration."""
        ports = [port for port in group.sources if port.tensor in self.graph.needs_grad]
        every = (self._whole_seconds(group, port, table) for port in ports)
        return sum(every, np.zeros(len(table.assign)))

    def _whole_seconds(self, group: Group, port: Port, table: GroupTable) -> Table:
        """Gradient synchronisation of a parameter stored whole."""
        spec, given, kept = self._summed(port, table)
        seconds = self.exchange_prices(spec).row_seconds(spec, given, kept)
        return self.model.exchanged(seconds, group.ops[port.op].name)

    def exchange_prices(self, spec: TensorSpec) -> Prices:
        """Prices of exchanging a gradient; bounds leave out latencies, which a bucket pays once."""
        return self.prices if self.model.price is None else self.prices.by_bytes(spec)

    def ask(self, group: Group, table: GroupTable) -> None:
        """Announce what `priced` needs."""
        for port in group.sources:
            if port.tensor in self.graph.needs_grad:
                summed = self._summed(port, table)
                self.exchange_prices(summed[0]).ask_rows(*summed)

    def _summed(self, port: Port, table: GroupTable) -> tuple[TensorSpec, Codes, Codes]:
        """(tensor, how its gradients leave, how they are kept)"""
        given = table.codes(lambda c: grad_in(c.signatures[port.op], port.index))
        kept = table.codes(lambda c: stored_placement(c.signatures[port.op].ins[port.index]))
        return self.graph.tensors[port.tensor].spec, given, kept


def grad_in(signature: Signature, index: int) -> Placement:
    placement = signature.grad_ins[index]
    assert placement is not None, f"{signature} gives no gradient for input {index}"
    return placement


def grad_out(signature: Signature, index: int) -> Placement:
    placement = signature.grad_outs[index]
    assert placement is not None, f"{signature} takes no gradient for output {index}"
    return placement
