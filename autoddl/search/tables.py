"""Cost tables of a graph on a cluster, built once for each distinct group and edge.

For group g with strategy s, seconds of one iteration of M micro-batches:

    node(s)    = M (compute(s) + inner collectives(s)) + synchronisation of its gradients(s)
    edge(s, t) = M (path(out_s -> in_t) + path(grad_in_t -> grad_out_s))

An edge from a tied parameter is paid once an iteration, not M times (AutoDDL section 4.3 names both
sources of communication). Everything is computed on arrays over all strategies of a group.
`build_tables` makes the `Problem`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..cost.model import CostModel
from ..cost.operator import compute_seconds, inner_seconds, reduced_spec, saved_bytes
from ..graph import Graph
from ..sbp.layout import Shape, TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.placement import B, Placement
from ..sbp.signature import Signature
from .group import (
    CompositeSignature,
    Group,
    Grouping,
    Port,
    composite_signatures,
    make_groups,
    rule_of,
)
from .pair_prices import PairPrices
from .problem import Edge, Problem, Table
from .space import DEFAULT_CAP, Assignments, assignments

Codes = NDArray[np.int8]


@dataclass(frozen=True)
class Space:
    """Which strategies are searched.

    allowed:           (group, composite signature, axis) -> whether a strategy may use it there
    strict:            a group that `allowed` leaves without a strategy is an error, else it is free
    min_weight_shards: devices over which each parameter of two dims or more is split at least
    cap:               strategies of one group, see `space.assignments`
    """

    allowed: Callable[[Group, CompositeSignature, int], bool] | None = None
    strict: bool = True
    min_weight_shards: int = 1
    cap: int = DEFAULT_CAP


WHOLE_SPACE = Space()


@dataclass(frozen=True)
class GroupTable:
    """All strategies of a group: `assign[k, axis]` numbers its composite signature there."""

    composites: tuple[CompositeSignature, ...]
    assign: Assignments
    compute_s: Table
    inner_s: Table
    sync_s: Table
    memory_bytes: Table

    def codes(self, label: Callable[[CompositeSignature], Placement]) -> Codes:
        """Placement codes [strategies, axes] of the tensor that `label` picks from a composite."""
        codes = np.array([label(c).code for c in self.composites], dtype=np.int8)
        return codes[self.assign]


@dataclass(frozen=True)
class Tables:
    """The problem's arrays with what they stand for."""

    grouping: Grouping
    problem: Problem
    groups: tuple[GroupTable, ...]  # by node table number
    model: CostModel
    micro_batches: int

    def table_of(self, variable: int) -> GroupTable:
        return self.groups[self.problem.nodes[variable]]


def build_tables(
    graph: Graph,
    model: CostModel,
    micro_batches: int = 1,
    space: Space = WHOLE_SPACE,
    prices: PairPrices | None = None,
) -> Tables | None:
    """The search problem of `graph` (with forks, at the micro-batch's size) on `model.cluster`.

    prices: shared by calls for one model, so that no path is priced twice
    None if even the sum of each group's least memory exceeds the limit: then no edge is priced.
    Raises ValueError if `space` leaves a group without a strategy.
    """
    if prices is None:
        prices = PairPrices(model.cluster.mesh, model.comm.price)
    builder = _Builder(graph, model, micro_batches, space, prices)
    return builder.build() if builder.prepare() else None


def may_fit(graph: Graph, model: CostModel, micro_batches: int, space: Space = WHOLE_SPACE) -> bool:
    """False if even the sum of each group's least memory exceeds the limit; prices no path."""
    prices = PairPrices(model.cluster.mesh, model.comm.price)
    return _Builder(graph, model, micro_batches, space, prices).prepare()


def stored_placement(placement: Placement) -> Placement:
    """How a parameter is kept that an operator takes in `placement`: never Partial."""
    return B if placement.is_partial else placement


@dataclass
class _Builder:
    graph: Graph
    model: CostModel
    micro_batches: int
    space: Space
    prices: PairPrices
    node_of_key: dict[Hashable, int] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    owners: list[Group] = field(default_factory=list)
    group_tables: list[GroupTable] = field(default_factory=list)
    edge_of_key: dict[Hashable, int] = field(default_factory=dict)
    edge_cost: list[Table] = field(default_factory=list)
    edge_memory: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mesh: Mesh = self.model.cluster.mesh
        self.extents = np.array(self.mesh.extents, dtype=np.float64)

    def prepare(self) -> bool:
        """Tables without communication; False if no choice can keep to the memory limit."""
        self.grouping = make_groups(self.graph)
        keys = [_group_key(self.graph, group, self.grouping) for group in self.grouping.groups]
        if self.space.allowed is not None:
            # A restriction may look at names, so equal groups no longer share a table.
            keys = [(key, n) for n, key in enumerate(keys)]
        for group, key in zip(self.grouping.groups, keys, strict=True):
            if key not in self.node_of_key:
                self.node_of_key[key] = len(self.owners)
                self.owners.append(group)
            self.nodes.append(self.node_of_key[key])
        self.group_tables = [self._local_table(group) for group in self.owners]
        least = sum(float(self.group_tables[t].memory_bytes.min()) for t in self.nodes)
        return least <= self.model.limit_bytes

    def build(self) -> Tables:
        grouping, nodes = self.grouping, self.nodes
        self.group_tables = [
            dataclasses.replace(
                table,
                inner_s=self._inner_seconds(group, table),
                sync_s=self._sync_seconds(group, table),
            )
            for group, table in zip(self.owners, self.group_tables, strict=True)
        ]
        edges = [
            edge
            for number, group in enumerate(grouping.groups)
            for edge in self._edges_into(grouping, nodes, number, group)
        ]
        problem = Problem(
            node_cost=tuple(
                self.micro_batches * (t.compute_s + t.inner_s) + t.sync_s for t in self.group_tables
            ),
            node_memory=tuple(t.memory_bytes for t in self.group_tables),
            edge_cost=tuple(self.edge_cost),
            edge_memory=tuple(self.edge_memory),
            nodes=tuple(nodes),
            edges=tuple(edges),
            heavy=frozenset(
                n
                for n, group in enumerate(grouping.groups)
                if group.head.kind == "param" or any(rule_of(op).heavy for op in group.ops)
            ),
            memory_limit=self.model.limit_bytes,
        )
        return Tables(grouping, problem, tuple(self.group_tables), self.model, self.micro_batches)

    # ---- nodes

    def _local_table(self, group: Group) -> GroupTable:
        """The group's strategies with what needs no communication to price."""
        composites = composite_signatures(self.graph, group)
        dispensable = frozenset(
            n
            for n, c in enumerate(composites)
            if _takes_partial(c) or (rule_of(group.head).heavy and not c.divides_work)
        )
        leading = frozenset(n for n, c in enumerate(composites) if _splits_batch(c))

        def even(assign: Assignments) -> NDArray[np.bool_]:
            mask = self._even(group, composites, assign)
            if assign.shape[1] == self.mesh.num_axes:
                mask &= self._shards_weights(group, composites, assign)
            return mask

        def feasible(assign: Assignments) -> NDArray[np.bool_]:
            mask = even(assign)
            for axis in range(assign.shape[1] if usable else 0):
                mask &= np.array(usable[axis])[assign[:, axis]]
            return mask

        allowed, cap = self.space.allowed, self.space.cap
        usable = (
            [[allowed(group, c, a) for c in composites] for a in range(self.mesh.num_axes)]
            if allowed is not None
            else []
        )
        assign = assignments(len(composites), leading, dispensable, self.mesh, feasible, cap)
        if not len(assign) and not self.space.strict:
            assign = assignments(len(composites), leading, dispensable, self.mesh, even, cap)
        if not len(assign):
            raise ValueError(
                f"no strategy is left for {group.head.name!r} ({group.head.kind}) on the mesh "
                f"{self.mesh}: no allowed split divides its tensors "
                f"{', '.join(str(self.graph.tensors[i].spec) for i in group.head.inputs)} evenly"
            )
        table = GroupTable(composites, assign, *(np.zeros(len(assign)) for _ in range(4)))
        compute_s, memory_bytes = self._compute_and_memory(group, table)
        return dataclasses.replace(table, compute_s=compute_s, memory_bytes=memory_bytes)

    def _even(
        self, group: Group, composites: Sequence[CompositeSignature], assign: Assignments
    ) -> NDArray[np.bool_]:
        """Strategies whose splits divide every tensor evenly and keep to the signatures' limits."""
        mask = np.ones(len(assign), dtype=bool)
        axes = assign.shape[1]
        extents = np.array(self.mesh.extents[:axes], dtype=np.int64)
        seen: set[tuple[Shape, bytes]] = set()
        for number, op in enumerate(group.ops):
            spec = self.graph.spec(op)
            ports = [(t.shape, "ins", i) for i, t in enumerate(spec.inputs)]
            ports += [(t.shape, "outs", i) for i, t in enumerate(spec.outputs)]
            for shape, side, index in ports:
                codes = np.array(
                    [getattr(c.signatures[number], side)[index].code for c in composites],
                    dtype=np.int8,
                )
                key = (shape, codes.tobytes())
                if key in seen:
                    continue
                seen.add(key)
                chosen = codes[assign]
                for dim in range(len(shape)):
                    parts = np.where(chosen == dim, extents, 1).prod(axis=1)
                    mask &= shape[dim] % parts == 0
            limits = [c.signatures[number].limit for c in composites]
            for limit in {lim for lim in limits if lim is not None}:
                limited = np.array([lim == limit for lim in limits])
                parts = np.where(limited[assign], extents, 1).prod(axis=1)
                mask &= limit % parts == 0
        return mask

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
                parts = np.where(split[assign], self.extents, 1.0).prod(axis=1)
                mask &= parts >= self.space.min_weight_shards
        return mask

    def _local_bytes(self, spec: TensorSpec, codes: Codes) -> Table:
        parts = np.where(codes >= 0, self.extents, 1.0).prod(axis=1)
        return spec.bytes / parts

    def _compute_and_memory(self, group: Group, table: GroupTable) -> tuple[Table, Table]:
        device = self.model.cluster.device
        seconds = np.zeros(len(table.assign))
        memory = np.zeros(len(table.assign))
        for number, op in enumerate(group.ops):
            spec, rule = self.graph.spec(op), rule_of(op)
            out_bytes = np.zeros(len(table.assign))
            in_bytes = np.zeros(len(table.assign))
            for i, out in enumerate(spec.outputs):
                out_bytes += self._local_bytes(
                    out, table.codes(lambda c, n=number, i=i: c.signatures[n].outs[i])
                )
            for i, tensor in enumerate(spec.inputs):
                in_bytes += self._local_bytes(
                    tensor, table.codes(lambda c, n=number, i=i: c.signatures[n].ins[i])
                )
            if op.kind == "param":
                memory += out_bytes * (
                    self.model.parameter_copies if op.outputs[0] in self.graph.needs_grad else 1
                )
                continue
            has_grad = any(o in self.graph.needs_grad for o in op.outputs)
            divides = np.array([c.signatures[number].divides_work for c in table.composites])
            share = np.where(divides[table.assign], self.extents, 1.0).prod(axis=1)
            seconds += compute_seconds(spec, rule, device, share, in_bytes + out_bytes, has_grad)
            memory += saved_bytes(spec, rule, out_bytes, has_grad)
        for port in group.sources:
            memory += self._source_bytes(port, table)
        return seconds, memory

    def _source_bytes(self, port: Port, table: GroupTable) -> Table:
        producer = self.graph.producers[port.tensor]
        spec = self.graph.tensors[port.tensor].spec
        if producer.kind not in ("param", "input"):
            return np.zeros(len(table.assign))
        codes = table.codes(lambda c: stored_placement(c.signatures[port.op].ins[port.index]))
        copies = 1
        if producer.kind == "param" and port.tensor in self.graph.needs_grad:
            copies = self.model.parameter_copies
        return copies * self._local_bytes(spec, codes)

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
            local = self._local_bytes(reduced_spec(spec, which), codes)
            carries = np.array([i is not None for i in inner])[table.assign]
            unique, inverse = np.unique(carries, axis=0, return_inverse=True)
            for row, axes in enumerate(unique):
                if axes.any():
                    at = inverse.ravel() == row
                    where = tuple(map(int, np.flatnonzero(axes)))
                    seconds[at] += inner_seconds(self.model.comm, which, where, local[at], has_grad)
        return seconds

    def _sync_seconds(self, group: Group, table: GroupTable) -> Table:
        """Gradient synchronisation of the single-use parameters, once an iteration."""
        seconds = np.zeros(len(table.assign))
        for port in group.sources:
            if port.tensor not in self.graph.needs_grad:
                continue
            spec = self.graph.tensors[port.tensor].spec
            given = table.codes(lambda c, p=port: _grad_in(c.signatures[p.op], p.index))
            kept = table.codes(lambda c, p=port: stored_placement(c.signatures[p.op].ins[p.index]))
            pairs, inverse = np.unique(np.hstack([given, kept]), axis=0, return_inverse=True)
            axes = self.mesh.num_axes
            both = self.prices.seconds(spec, pairs[:, :axes], pairs[:, axes:])
            seconds += np.diagonal(both)[inverse.ravel()]
        return seconds

    # ---- edges

    def _edges_into(
        self, grouping: Grouping, nodes: Sequence[int], number: int, group: Group
    ) -> list[Edge]:
        found = []
        for port in group.inputs:
            producer = self.graph.producers[port.tensor]
            source = grouping.owner[producer.name]
            source_op = next(
                n for n, op in enumerate(grouping.groups[source].ops) if op.name == producer.name
            )
            out = producer.outputs.index(port.tensor)
            has_grad = port.tensor in self.graph.needs_grad
            key = (
                nodes[source], source_op, out, nodes[number], port.op, port.index, has_grad,
            )  # fmt: skip
            if key not in self.edge_of_key:
                self.edge_of_key[key] = len(self.edge_cost)
                times = 1 if producer.kind == "param" else self.micro_batches
                cost, memory = self._edge_table(
                    self.graph.tensors[port.tensor].spec,
                    self.group_tables[nodes[source]], source_op, out,
                    self.group_tables[nodes[number]], port, has_grad,
                )  # fmt: skip
                self.edge_cost.append(times * cost)
                self.edge_memory.append(memory)
            found.append(Edge(source, number, self.edge_of_key[key]))
        return found

    def _edge_table(
        self,
        spec: TensorSpec,
        source: GroupTable,
        source_op: int,
        out: int,
        target: GroupTable,
        port: Port,
        has_grad: bool,
    ) -> tuple[Table, Table]:
        given = source.codes(lambda c: c.signatures[source_op].outs[out])
        wanted = target.codes(lambda c: c.signatures[port.op].ins[port.index])
        cost = self.prices.seconds(spec, given, wanted)
        if has_grad:
            back_given = target.codes(lambda c: _grad_in(c.signatures[port.op], port.index))
            back_wanted = source.codes(lambda c: _grad_out(c.signatures[source_op], out))
            cost = cost + self.prices.seconds(spec, back_given, back_wanted).T
        differs = np.zeros((len(given), len(wanted)), dtype=bool)
        for axis in range(self.mesh.num_axes):
            differs |= given[:, axis][:, None] != wanted[:, axis][None, :]
        return cost, np.where(differs, self._local_bytes(spec, wanted)[None, :], 0.0)


def _grad_in(signature: Signature, index: int) -> Placement:
    placement = signature.grad_ins[index]
    assert placement is not None, f"{signature} gives no gradient for input {index}"
    return placement


def _grad_out(signature: Signature, index: int) -> Placement:
    placement = signature.grad_outs[index]
    assert placement is not None, f"{signature} takes no gradient for output {index}"
    return placement


def _takes_partial(composite: CompositeSignature) -> bool:
    return any(p.is_partial for p in composite.signatures[-1].ins)


def _splits_batch(composite: CompositeSignature) -> bool:
    """True if the head's outputs are split along dim 0 (the batch, in a traced model)."""
    outs = composite.signatures[-1].outs
    return bool(outs) and all(p.is_split and p.dim == 0 for p in outs)


def _group_key(graph: Graph, group: Group, grouping: Grouping) -> Hashable:
    """Equal for groups that have the same tables."""
    position = {op.name: number for number, op in enumerate(group.ops)}
    parts: list[Hashable] = []
    for op in group.ops:
        spec = graph.spec(op)
        wiring: list[Hashable] = []
        for name in op.inputs:
            producer = graph.producers[name]
            inside = position.get(producer.name)
            kind = "external"
            if inside is not None:
                kind = "inside"
            elif producer.name not in grouping.owner:
                kind = producer.kind if producer.kind in ("param", "input") else "free"
            wiring.append((kind, inside, name in graph.needs_grad))
        attrs = tuple(sorted(op.attrs.items())) if op.kind not in ("param", "opaque") else ()
        grads = tuple(o in graph.needs_grad for o in op.outputs)
        parts.append((op.kind, attrs, spec.inputs, spec.outputs, tuple(wiring), grads))
    # Which outputs are read outside decides which composite signatures are distinct.
    outputs = tuple((number, index) for number, index, _ in group.outputs)
    return tuple(parts), outputs
