"""The account of one plan: seconds, bytes on every kind of link and memory, operator by operator.

Uses the formulas of `cost.operators` and `cost.collectives` on the planned steps themselves, so
that the figures of a plan are those of the program that runs. Bytes through one NIC and between the
devices of a host follow `sbp.redistribute` (design: the NIC is shared); memory is that of `held`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..cluster.spec import Kind
from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step, device_intra_bytes, nic_bytes, nic_messages
from ..sbp.layout import TensorSpec, even_bytes
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp, P
from ..sbp.redistribute import path_cost
from ..sbp.signature import Inner, find_rule
from .exchange import Buckets, exchanges, sharers
from .memory import Held, held_bytes, placed_alike
from .model import CostModel
from .operators import Divided, inner_count, inner_seconds, reduced_spec
from .recompute import Recomputation
from .sharded_storage import edge_times


@dataclass
class Traffic:
    """Bytes, or seconds, of one iteration by cause."""

    forward: float = 0.0
    backward: float = 0.0
    gradient_sync: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.gradient_sync

    def add(self, other: Traffic) -> None:
        self.forward += other.forward
        self.backward += other.backward
        self.gradient_sync += other.gradient_sync


@dataclass
class Cost:
    """Cost of an operator, a layer or a plan: one iteration (all micro-batches) on one device.

    hidden_s: of the seconds of communication, those that run beside computation; of a whole plan
    """

    compute_s: float = 0.0
    inter_s: Traffic = field(default_factory=Traffic)  # seconds of collectives between nodes
    intra_s: Traffic = field(default_factory=Traffic)  # seconds of those inside a node
    nic_bytes: Traffic = field(default_factory=Traffic)
    intra_bytes: Traffic = field(default_factory=Traffic)
    held: Held = field(default_factory=Held)
    nic_messages: float = 0.0  # in which the NIC's bytes travel
    hidden_s: float = 0.0

    @property
    def memory_bytes(self) -> float:
        return self.held.memory_bytes

    @property
    def communication_s(self) -> float:
        return self.inter_s.total + self.intra_s.total

    @property
    def exposed_s(self) -> float:
        """Seconds of communication that nothing hides."""
        return max(self.communication_s - self.hidden_s, 0.0)  # all hidden, but for rounding

    @property
    def iteration_s(self) -> float:
        return self.compute_s + self.communication_s - self.hidden_s

    def add(self, other: Cost) -> None:
        self.compute_s += other.compute_s
        self.inter_s.add(other.inter_s)
        self.intra_s.add(other.intra_s)
        self.held.add(other.held)
        self.nic_messages += other.nic_messages
        self.nic_bytes.add(other.nic_bytes)
        self.intra_bytes.add(other.intra_bytes)
        self.hidden_s += other.hidden_s


def account(
    graph: Graph,
    model: CostModel,
    micro_batches: int,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation | None = None,
    buckets: Buckets = (),
) -> dict[str, Cost]:
    """Operator name -> its cost; a redistribution counts for the operator that reads its result.

    again:   which blocks are run again before their backward pass
    buckets: gradients that travel together, and share their latencies evenly

    Equal operators share theirs, which nobody changes.
    """
    again = again or Recomputation(graph)
    together = sharers(exchanges(graph, ops, edges), buckets) if buckets else {}
    alike = placed_alike(graph, ops, edges)
    held = held_bytes(graph, model, micro_batches, ops, edges, again, alike=alike)
    trips = Trips(model)
    known: dict[Hashable, Cost] = {}
    costs: dict[str, Cost] = {}
    for op in graph.ops:
        own, passes = held[op.name], again.passes(op.name)
        travels = (together.get((op.name, index), 1) for index in range(len(op.inputs)))
        key = alike[op.name], passes, *travels, *vars(own).values()
        if key not in known or op.kind == "opaque" or trips.has_measured:
            known[key] = cost = Cost(held=own)
            _add_operator(cost, graph, trips, micro_batches, passes, op, ops[op.name])
            _add_inputs(cost, graph, trips, micro_batches, passes, op, ops, edges, together)
        costs[op.name] = known[key]
    return costs


def _add_inputs(
    cost: Cost,
    graph: Graph,
    trips: Trips,
    micro_batches: int,
    passes: int,
    op: Op,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    together: Mapping[tuple[str, int], int],
) -> None:
    """Add the redistributions into an operator, and of their gradients."""
    for index, name in enumerate(op.inputs):
        edge = edges.get((op.name, index))
        if edge is None:
            continue
        producer, spec = graph.producers[name], graph.tensors[name].spec
        given = ops[producer.name].outs[producer.outputs.index(name)]
        is_param = producer.kind == "param"
        forward, backward = edge_times(is_param, edge.zero_stage, micro_batches, passes)
        for cause, times in zip(("forward", "backward"), forward, strict=True):
            _add_path(cost, trips.along(spec, given, edge.forward), times, cause)
        back = ops[op.name].grad_ins[index]
        if edge.backward and back is not None:
            cause = "gradient_sync" if is_param else "backward"
            trip = trips.along(spec, back, edge.backward)
            _add_path(cost, trip.among(together.get((op.name, index), 1)), backward, cause)


def total(costs: Iterable[Cost]) -> Cost:
    whole = Cost()
    for cost in costs:
        whole.add(cost)
    return whole


def _add_operator(
    cost: Cost, graph: Graph, trips: Trips, times: int, passes: int, op: Op, placed: PlannedOp
) -> None:
    model, mesh = trips.model, trips.model.cluster.mesh
    spec, rule = graph.spec(op), find_rule(op.kind)
    assert rule is not None, f"{op.name} has no rule"
    has_grad = any(o in graph.needs_grad for o in op.outputs)
    if op.kind in SOURCE_KINDS:
        return
    if op.name not in graph.free_ops:
        forward_s, backward_s = trips.seconds(graph, op, placed)
        cost.compute_s += times * (passes * forward_s + backward_s)
    if placed.inner_axes:
        inner, axes = inner_of(graph, op), placed.inner_axes
        trip = inner_trip(graph, trips, op, placed)
        reduced = reduced_spec(spec, inner)
        local = np.array([even_bytes(reduced, _reduced_nd(inner, placed), mesh)])
        seconds = times * float(inner_seconds(model.comm, inner, axes, local, has_grad)[0])
        both = inner_count(inner, has_grad)
        counts = ("forward", passes * inner.forward), ("backward", inner.backward)
        for cause, count in counts:
            if cause == "forward" or has_grad:
                link = cost.inter_s if mesh.topology(axes)[0] > 1 else cost.intra_s
                _add(link, cause, seconds * count / both)
                _add_bytes(cost, trip, times * count, cause)


def inner_trip(graph: Graph, trips: Trips, op: Op, placed: PlannedOp) -> Trip:
    """One of the collectives inside `op`."""
    inner = inner_of(graph, op)
    partial = _reduced_nd(inner, placed).replace(placed.inner_axes, P)
    steps = (Step.between(P, B, placed.inner_axes),)
    return trips.along(reduced_spec(graph.spec(op), inner), partial, steps)


def _reduced_nd(inner: Inner, placed: PlannedOp) -> NdSbp:
    """How what the collectives inside an operator reduce is placed before and after."""
    source = placed.ins[inner.tensor]
    return NdSbp(tuple(B if p.is_split and p.dim in inner.dims else p for p in source))


def operator_seconds(
    graph: Graph, model: CostModel, op: Op, placed: PlannedOp, kind: Kind | None = None
) -> tuple[float, float]:
    """Seconds of computation of one forward and one backward pass of `op` on one device.

    kind: of a device of this kind; None for the kind that takes longest
    """
    if op.name in graph.free_ops:
        return 0.0, 0.0
    divided = divided_by(graph, model.cluster.mesh, op, placed)

    def seconds(has_grad: bool) -> float:
        return float(divided.seconds(model.cluster, graph, op, has_grad, kind)[0])

    forward = seconds(False)
    has_grad = any(o in graph.needs_grad for o in op.outputs)
    return forward, seconds(True) - forward if has_grad else 0.0


def divided_by(graph: Graph, mesh: Mesh, op: Op, placed: PlannedOp) -> Divided:
    """How `op` is divided where it is placed: arrays of one strategy."""
    spec, places = graph.spec(op), (*placed.ins, *placed.outs)
    divides = [any(nd[axis].is_split for nd in places) for axis in range(mesh.num_axes)]
    share = math.prod(p for p, divided in zip(mesh.parts, divides, strict=True) if divided)
    tensors = zip((*spec.inputs, *spec.outputs), places, strict=True)
    sizes = [(even_bytes(t, nd, mesh), nd) for t, nd in tensors]
    first = sum(size for size, nd in sizes if mesh.shares and nd[0].is_split)
    return Divided(
        np.array([float(share)]),
        np.array([sum(size for size, _ in sizes)]),
        np.array([any(divides[:1])]),
        np.array([float(first)]),
    )


def inner_of(graph: Graph, op: Op) -> Inner:
    """The collectives inside `op`; an operator has one kind of them."""
    return next(s.inner for s in graph.signatures(op) if s.inner is not None)


@dataclass(frozen=True)
class Trip:
    """What one trip along steps takes: seconds between nodes and inside one, bytes, messages.

    inter_alpha_s, intra_alpha_s: of the seconds, those of latency
    """

    inter_s: float
    intra_s: float
    nic_bytes: float
    intra_bytes: float
    nic_messages: float
    inter_alpha_s: float
    intra_alpha_s: float

    @property
    def seconds(self) -> float:
        return self.inter_s + self.intra_s

    @property
    def alpha_s(self) -> float:
        return self.inter_alpha_s + self.intra_alpha_s

    def among(self, sharers: int) -> Trip:
        """The part of one of so many tensors that make this trip together."""
        if sharers == 1:
            return self
        saved = 1 - 1 / sharers
        return replace(
            self,
            inter_s=self.inter_s - saved * self.inter_alpha_s,
            intra_s=self.intra_s - saved * self.intra_alpha_s,
            nic_messages=self.nic_messages / sharers,
        )


@dataclass
class Trips:
    """Trips and computations on one machine, each once: equal blocks make the same ones.

    So do the plans that are compared in a search: the model remembers them for all.
    """

    model: CostModel

    def __post_init__(self) -> None:
        self.has_measured = any(kind.device.operators for kind in self.model.cluster.kinds)
        self._seconds: dict[Hashable, tuple[float, float]] = self.model.known("seconds")
        self._known: dict[tuple[TensorSpec, NdSbp, tuple[Step, ...]], Trip] = self.model.known(
            "trips"
        )

    def seconds(self, graph: Graph, op: Op, placed: PlannedOp) -> tuple[float, float]:
        """`operator_seconds`."""
        # what was measured is known by more than this; an opaque part's attributes are of any type
        if op.kind == "opaque" or self.has_measured:
            return operator_seconds(graph, self.model, op, placed)
        spec, attrs = graph.spec(op), tuple(sorted(op.attrs.items()))
        has_grad = any(o in graph.needs_grad for o in op.outputs)
        key = op.kind, attrs, spec.inputs, spec.outputs, placed.ins, placed.outs, has_grad
        if key not in self._seconds:
            self._seconds[key] = operator_seconds(graph, self.model, op, placed)
        return self._seconds[key]

    def along(self, spec: TensorSpec, source: NdSbp, steps: tuple[Step, ...]) -> Trip:
        key = spec, source, steps
        if key not in self._known:
            self._known[key] = self._trip(*key)
        return self._known[key]

    def _trip(self, spec: TensorSpec, source: NdSbp, steps: tuple[Step, ...]) -> Trip:
        mesh, table, nd = self.model.cluster.mesh, self.model.comm.collectives, source
        seconds = {True: 0.0, False: 0.0}  # between nodes, inside one
        alphas = {True: 0.0, False: 0.0}
        for step in steps:
            if not step.is_free:
                between = mesh.topology(step.axes)[0] > 1
                seconds[between] += path_cost(spec, nd, (step,), mesh, self.model.comm.price)
                alphas[between] += self.model.comm.price(step.way, step.axes)[0]
            nd = step.apply(nd)
        return Trip(
            seconds[True],
            seconds[False],
            nic_bytes(spec, source, steps, mesh, table),
            device_intra_bytes(spec, source, steps, mesh, table),
            nic_messages(steps, mesh, table),
            alphas[True],
            alphas[False],
        )


def _add_path(cost: Cost, trip: Trip, times: int, cause: str) -> None:
    if not times:
        return
    _add(cost.inter_s, cause, times * trip.inter_s)
    _add(cost.intra_s, cause, times * trip.intra_s)
    _add_bytes(cost, trip, times, cause)


def _add_bytes(cost: Cost, trip: Trip, times: int, cause: str) -> None:
    cost.nic_messages += times * trip.nic_messages
    _add(cost.nic_bytes, cause, times * trip.nic_bytes)
    _add(cost.intra_bytes, cause, times * trip.intra_bytes)


def _add(traffic: Traffic, cause: str, amount: float) -> None:
    setattr(traffic, cause, getattr(traffic, cause) + amount)
