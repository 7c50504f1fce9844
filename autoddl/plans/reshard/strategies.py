"""The unit tasks of a cross-mesh resharding, and how a sender brings one to its receivers.

A tensor lies on a source mesh under one NdSbp and is needed on another mesh under another. Its
shards on either side are boxes of elements; different shards of one side do not overlap. Each
intersection of a source shard with a target shard is one unit task (AlpaComm section 2.2 and
appendix B): any device that has the source shard may send it, and all devices that need the target
shard must receive it. Splits may be uneven.

A strategy brings a task from one sender to its receivers (section 3.1). The task's n elements go to
A hosts with B devices each. Cost in units of t, the time of the whole slice through a NIC:

    send_recv          the sender sends the slice to each device                        A B t
    local_all_gather   to each host a piece per device, which the host gathers          A t
    global_all_gather  a piece to every device, which all gather in a ring              2 t
    broadcast          a chain through all devices, host by host, in K chunks           t (1 + A/K)

A strategy yields `moves`: copies of flat ranges of the slice from device to device, in an order in
which each device already has what it sends. The bytes on a host's link are counted from them, and
both the NumPy simulation and the executor execute them. `seconds` prices them with the cluster's
links; chains and rings are full duplex: a device receives one chunk while it sends the previous
one.

The load-balancing problem (`order`) gives a task whole links for as long as it lasts. In execution,
each device goes through its moves in the plan's order, a move starts when both its devices have
reached it, and messages that cross a NIC at the same time share its bandwidth 1 / beta: a message
out of host a into host b, while a sends n_a and b receives n_b messages, proceeds at
1 / (beta max(n_a, n_b)) after its latency. `shared_seconds` simulates this. It prices plans whose
tasks overlap or wait for one another in ways that the load-balancing problem does not model;
`benchmarks/box/reshard.py` compares both with measured times.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from ...cluster.link import Link
from ...cluster.spec import Cluster
from ...sbp.layout import TensorSpec, balanced_range, local_slices
from ...sbp.mesh import Device, Mesh, SubMesh
from ...sbp.placement import NdSbp

Strategy = Literal["send_recv", "local_all_gather", "global_all_gather", "broadcast"]
STRATEGIES: tuple[Strategy, ...] = (
    "send_recv", "local_all_gather", "global_all_gather", "broadcast",
)  # fmt: skip
# Each chunk is a message of its own at run time. Of 70 random reshardings of up to 1 GB, 64 and 256
# chunks at most change none, 32 change one by 1 %.
MOST_CHUNKS = 128
Box = tuple[tuple[int, int], ...]  # (start, stop) per dim


@dataclass(frozen=True)
class End:
    """One side of a resharding: the devices that hold the tensor, and its placement.

    shares: by which it is divided among runs of hosts, () for equal parts (`sbp.mesh`)
    """

    place: SubMesh
    nd: NdSbp
    shares: tuple[int, ...] = ()

    @property
    def mesh(self) -> Mesh:
        return Mesh(*self.place.shape, self.shares)

    def __str__(self) -> str:
        return f"{self.nd} on {self.place}"


@dataclass(frozen=True)
class UnitTask:
    """`box` of the tensor: each of `senders` has it, all of `receivers` must receive it."""

    box: Box
    numel: int
    item_bytes: int
    senders: tuple[Device, ...]
    receivers: tuple[Device, ...]

    @property
    def bytes(self) -> int:
        return self.numel * self.item_bytes

    @property
    def sender_hosts(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(host for host, _ in self.senders))

    @property
    def receiver_hosts(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(host for host, _ in self.receivers))


def unit_tasks(spec: TensorSpec, source: End, target: End) -> tuple[UnitTask, ...]:
    """The unit tasks, ordered by source shard, then target shard.

    Raises ValueError if a placement does not fit, is Partial, or the two sides share a device.
    """
    for what, end in (("source", source), ("target", target)):
        if end.nd.has_partial:
            raise ValueError(
                f"the {what} placement {end.nd} is Partial; tensors that travel between meshes "
                "are added up first: redistribute to Split or Broadcast on the mesh of the source"
            )
    shared = set(source.place.devices) & set(target.place.devices)
    if shared:
        raise ValueError(
            f"source ({source.place}) and target ({target.place}) share device {min(shared)}; "
            "stages lie on disjoint sub-meshes"
        )
    sides = _shards(spec, source), _shards(spec, target)
    given, needed = (np.array([*side]).reshape(len(side), len(spec.shape), 2) for side in sides)
    low = np.maximum(given[:, None, :, 0], needed[None, :, :, 0])  # [source's, target's, dims]
    high = np.minimum(given[:, None, :, 1], needed[None, :, :, 1])
    senders, receivers = ([*side.values()] for side in sides)
    tasks = []
    for first, second in np.argwhere((low < high).all(axis=2)).tolist():
        ends = low[first, second].tolist(), high[first, second].tolist()
        numel = math.prod(stop - start for start, stop in zip(*ends, strict=True))
        box = tuple(zip(*ends, strict=True))
        pair = senders[first], receivers[second]
        tasks.append(UnitTask(box, numel, spec.item_bytes, *pair))
    return tuple(tasks)


def _shards(spec: TensorSpec, end: End) -> dict[Box, tuple[Device, ...]]:
    """The distinct shards, and which devices hold each."""
    found: dict[Box, list[Device]] = {}
    mesh = end.mesh
    for rank, device in enumerate(end.place.devices):
        slices = local_slices(spec.shape, end.nd, mesh, rank)
        found.setdefault(tuple((s.start, s.stop) for s in slices), []).append(device)
    return {box: tuple(devices) for box, devices in found.items()}


@dataclass(frozen=True, slots=True)
class Move:
    """Elements [start, stop) of a task's slice, flattened, travel from one device to another."""

    sender: Device
    receiver: Device
    start: int
    stop: int


@dataclass(frozen=True)
class Delivery:
    """A unit task with its strategy and sender chosen. `chunks` is K of a broadcast, else 1."""

    task: UnitTask
    strategy: Strategy
    sender: Device
    chunks: int = 1

    @property
    def chain(self) -> tuple[Device, ...]:
        """The receivers host by host, those on the sender's own host first."""
        own = [d for d in self.task.receivers if d[0] == self.sender[0]]
        return (*own, *sorted(d for d in self.task.receivers if d[0] != self.sender[0]))

    @property
    def hosts(self) -> tuple[tuple[Device, ...], ...]:
        """The chain, grouped by host."""
        return tuple(tuple(devices) for _, devices in groupby(self.chain, lambda d: d[0]))

    def moves(self) -> Iterator[Move]:
        """The copies, in an order in which they can run."""
        numel, sender, chain = self.task.numel, self.sender, self.chain
        if self.strategy == "send_recv":
            yield from (Move(sender, device, 0, numel) for device in chain)
        elif self.strategy == "local_all_gather":
            for devices in self.hosts:
                yield from _gather(sender, devices, numel)
        elif self.strategy == "global_all_gather":
            yield from _gather(sender, chain, numel)
        else:
            for k in range(self.chunks):
                start, stop = balanced_range(0, numel, self.chunks, k)
                for giver, taker in zip((sender, *chain), chain, strict=False):
                    yield Move(giver, taker, start, stop)

    def seconds(self, cluster: Cluster) -> float:
        """Seconds until the last receiver has the slice, if nothing else uses the links."""
        n_bytes, sender, chain = float(self.task.bytes), self.sender, self.chain
        inter, intra = cluster.inter, cluster.intra
        if self.strategy == "send_recv":
            return sum(_link(cluster, sender, d).transfer_seconds(n_bytes) for d in chain)
        if self.strategy == "local_all_gather":
            scattered = sum(_scatter_s(cluster, sender, devices, n_bytes) for devices in self.hosts)
            # while one host gathers, the next one's pieces are sent
            return scattered + _ring_s(intra, len(self.hosts[-1]), n_bytes)
        if self.strategy == "global_all_gather":
            link = inter if len(self.hosts) > 1 else intra
            return _scatter_s(cluster, sender, chain, n_bytes) + _ring_s(link, len(chain), n_bytes)
        links = [_link(cluster, a, b) for a, b in zip((sender, *chain), chain, strict=False)]
        each = [link.transfer_seconds(n_bytes / self.chunks) for link in links]
        return sum(each) + (self.chunks - 1) * max(each)

    def nic_bytes(self) -> tuple[Counter[int], Counter[int]]:
        """(into, out of) each host through its NIC: bytes, by formula."""
        into: Counter[int] = Counter()
        out: Counter[int] = Counter()

        def carry(giver: Device, taker: Device, n_bytes: int) -> None:
            if giver[0] != taker[0]:
                into[taker[0]] += n_bytes
                out[giver[0]] += n_bytes

        whole, item, chain = self.task.bytes, self.task.item_bytes, self.chain
        if self.strategy == "send_recv":
            for device in chain:
                carry(self.sender, device, whole)
        elif self.strategy == "local_all_gather":
            for devices in self.hosts:
                carry(self.sender, devices[0], whole)
        elif self.strategy == "global_all_gather":
            for k, device in enumerate(chain):
                start, stop = balanced_range(0, self.task.numel, len(chain), k)
                piece = (stop - start) * item
                carry(self.sender, device, piece)
                carry(chain[k - 1], device, whole - piece)
        else:
            for giver, taker in zip((self.sender, *chain), chain, strict=False):
                carry(giver, taker, whole)
        return into, out


def deliver(task: UnitTask, strategy: Strategy, sender: Device, cluster: Cluster) -> Delivery:
    """The delivery, for a broadcast with the number of chunks that takes least time.

    T(K) = sum_i (alpha_i + n beta_i / K) + (K - 1) max_i (alpha_i + n beta_i / K) is least near K =
    sqrt(n (sum_i beta_i - beta_max) / alpha_max).
    """
    plain = Delivery(task, strategy, sender)
    if strategy != "broadcast" or len(plain.chain) == 1:
        return plain
    chain = plain.chain
    links = [_link(cluster, a, b) for a, b in zip((sender, *chain), chain, strict=False)]
    most = min(MOST_CHUNKS, task.numel)
    slowest = max(links, key=lambda link: link.transfer_seconds(task.bytes / most))
    rest = sum(link.beta_s_per_byte for link in links) - slowest.beta_s_per_byte
    best = (
        math.sqrt(task.bytes * rest / slowest.transfer_latency_s)
        if slowest.transfer_latency_s
        else most
    )
    counts = sorted({min(max(1, k), most) for k in (1, math.floor(best), math.ceil(best), most)})
    options = [Delivery(task, strategy, sender, k) for k in counts]
    return min(options, key=lambda d: d.seconds(cluster))


def _link(cluster: Cluster, a: Device, b: Device) -> Link:
    return cluster.intra if a[0] == b[0] else cluster.inter


def _scatter_s(
    cluster: Cluster, sender: Device, devices: tuple[Device, ...], n_bytes: float
) -> float:
    piece = n_bytes / len(devices)
    return sum(_link(cluster, sender, d).transfer_seconds(piece) for d in devices)


def _ring_s(link: Link, size: int, n_bytes: float) -> float:
    """Seconds of a ring all-gather whose result has n_bytes."""
    return (size - 1) * link.transfer_seconds(n_bytes / size)


def _gather(sender: Device, devices: tuple[Device, ...], numel: int) -> Iterator[Move]:
    """Piece k goes to device k, then a ring: in round r device k passes on piece k - r."""
    size = len(devices)
    order = _ring_order(devices)
    pieces = [balanced_range(0, numel, size, k) for k in range(size)]
    for device, (start, stop) in zip(devices, pieces, strict=True):
        if stop > start:
            yield Move(sender, device, start, stop)
    for r in range(size - 1):
        for k in order:
            start, stop = pieces[(k - r) % size]
            if stop > start:
                yield Move(devices[k], devices[(k + 1) % size], start, stop)


def _ring_order(devices: tuple[Device, ...]) -> list[int]:
    """The order of sends within a round: sets of pairs without a common device.

    A device does one move at a time. Sending strictly in ring order would make each round as long
    as a trip around the ring; in this order the links between hosts, the slowest ones, come first
    and all work at once.
    """
    size = len(devices)
    pairs = {k: (devices[k], devices[(k + 1) % size]) for k in range(size)}
    return in_rounds(sorted(pairs, key=lambda k: pairs[k][0][0] == pairs[k][1][0]), pairs)


def shared_seconds(ordered: Iterable[tuple[UnitTask, Move]], cluster: Cluster) -> float:
    """The end of the last move if moves are issued in this order."""
    queues: dict[Device, deque[int]] = {}
    moves = []
    for number, (task, move) in enumerate(ordered):
        moves.append((move.sender, move.receiver, (move.stop - move.start) * task.item_bytes))
        for device in (move.sender, move.receiver):
            queues.setdefault(device, deque()).append(number)
    inter, intra = cluster.inter, cluster.intra
    now = 0.0
    latency: dict[int, float] = {}  # running moves that carry no bytes yet: when they begin to
    left: dict[int, float] = {}  # bytes of those that do
    _start(set(queues), queues, moves, cluster, latency, now)
    while latency or left:
        rates = _rates(left, moves, inter.beta_s_per_byte, intra.beta_s_per_byte)
        step = min(
            min((left[n] / rates[n] for n in left), default=math.inf),
            min(latency.values(), default=math.inf) - now,
        )
        now += step
        for n in left:
            left[n] -= step * rates[n]
        for n in [n for n, begin in latency.items() if begin <= now * (1 + 1e-12)]:
            del latency[n]
            left[n] = float(moves[n][2])
        ended = [n for n in left if left[n] <= 1e-9 * moves[n][2]]
        free: set[Device] = set()
        for n in ended:
            del left[n]
            for device in moves[n][:2]:
                queues[device].popleft()
                free.add(device)
        _start(free, queues, moves, cluster, latency, now)
    assert not any(queues.values()), "the plan's moves wait for one another"
    return now


def _start(
    free: set[Device],
    queues: dict[Device, deque[int]],
    moves: list[tuple[Device, Device, int]],
    cluster: Cluster,
    latency: dict[int, float],
    now: float,
) -> None:
    """Start each move that is first in the queues of both its devices."""
    for device in sorted(free):
        if not queues[device]:
            continue
        n = queues[device][0]
        sender, receiver, _ = moves[n]
        if n not in latency and queues[sender][0] == queues[receiver][0] == n:
            link = cluster.intra if sender[0] == receiver[0] else cluster.inter
            latency[n] = now + link.transfer_latency_s


def _rates(
    left: dict[int, float], moves: list[tuple[Device, Device, int]], inter: float, intra: float
) -> dict[int, float]:
    """Bytes per second of each running move. inter, intra: seconds per byte"""
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    for n in left:
        (a, _), (b, _), _ = moves[n]
        if a != b:
            out[a] = out.get(a, 0) + 1
            into[b] = into.get(b, 0) + 1
    return {
        n: 1 / (inter * max(out[a], into[b])) if a != b else 1 / intra
        for n in left
        for (a, _), (b, _) in (moves[n][:2],)
    }


def in_rounds(numbers: Sequence[int], devices: Mapping[int, Collection[Device]]) -> list[int]:
    """The moves reordered: repeatedly the first ones without a common device, then the rest.

    Devices go through their own moves in the plan's order. If two successive moves in that order
    share a device, one must wait for the other, and later moves wait as well; within a round all
    devices can work at once.

    devices: the devices of each move
    """
    left = list(numbers)
    order: list[int] = []
    while left:
        taken: set[Device] = set()
        rest = []
        for n in left:
            if taken.isdisjoint(devices[n]):
                taken.update(devices[n])
                order.append(n)
            else:
                rest.append(n)
        left = rest
    return order
