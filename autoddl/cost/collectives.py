"""Prices of collectives on a cluster: AutoDDL Table II, the NIC shared by groups that cross it.

For a group of p ranks, n nodes x g GPUs on nodes of G GPUs, alpha and beta of a link class:

    all-gather, reduce-scatter of n_bytes in full   (p-1) alpha + (p-1)/p n_bytes beta
    all-reduce                                      twice that
    all-to-all of local bytes a rank                (p-1) alpha + (p-1)/p local beta
    send of n_bytes to the other of two ranks       alpha + n_bytes beta

The paper's plain rule (section 4.2) takes the link inside a node if the group lies inside one, else
the link between nodes. Groups along the same axes run at the same time: G/g of them cross each NIC,
so the bytes through one NIC are (G/g) (p-1)/p n_bytes, and G local (p-g)/p for an all-to-all; the
slower of NIC and in-node link decides. On a machine where they were measured, each collective costs
the link's `call_s` once as well, and the device's `shuffle_s_per_byte` for each byte each time that
it passes over the tensor itself, to copy it into and out of buffers, to sum, or to bring scattered
pieces together. Where the machine file has a line of their own for groups of this shape
(`cluster.link.GroupLine`), that is the price. Messages and bytes are those of the cluster's table
of collectives (`sbp.collectives`), from which `CommModel.price` computes both rules; where the
table has several algorithms of one collective, each has its price.

**What a device holds meanwhile**, beside the tensor before and after (`workspace_while`). A step of
a redistribution (`runtime.comm.redistribute`) lays the pieces of a tensor one after the other into
a flat one, each in a room of its own, gives that to a collective, and joins the flat pieces that
come:

    workspace = max( laid out + what comes + the collective's own,  what comes + joined ) - after

Laying out is free where pieces lie so in the tensor already, those of its first dim, and joining
where what comes is the result. Pieces of unequal size (`mesh.Axis.shares`) have rooms as large as
the largest, and are a copy on both sides, but for an all-to-all, whose pairs swap equal ones. What
a collective holds of its own is the back end's (`memory_rules`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..cluster.link import GroupLine, Link
from ..cluster.spec import Cluster
from ..sbp.collectives import COLLECTIVES, Collectives, Step, StepKind, path_bytes
from ..sbp.edges import mask_axes
from ..sbp.layout import Shape, TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.placement import NdSbp, Placement, S
from ..sbp.work import Work

Prices = NDArray[np.float64]
CommRule = Literal["shared_nic", "plain"]
COMM_RULES: tuple[CommRule, ...] = ("shared_nic", "plain")


def work_of(
    way: StepKind, nodes: int, gpus: int, groups: float, collectives: Collectives = COLLECTIVES
) -> Work:
    """The work of a collective, or a "send", in groups of nodes x gpus devices.

    groups: so many of them share each NIC
    """
    if way == "send":
        return Work(1, groups if nodes > 1 else 0.0, 1.0)
    work = collectives[way].work
    assert work is not None, f"{way} sends nothing"
    return work(nodes, gpus, groups)


@dataclass(frozen=True)
class CommModel:
    """Prices steps on `cluster`. `rule` is "shared_nic" or the paper's "plain"."""

    cluster: Cluster
    rule: CommRule = "shared_nic"

    def __post_init__(self) -> None:
        if self.rule not in COMM_RULES:
            raise ValueError(f"unknown communication rule {self.rule!r}; use one of {COMM_RULES}")

    @cached_property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    @property
    def collectives(self) -> Collectives:
        """The table whose ways are priced."""
        return self.cluster.collectives

    @cached_property
    def _intra(self) -> Link:
        return self.cluster.common_link("intra")

    @cached_property
    def _shuffle_s_per_byte(self) -> float:
        return max(kind.device.shuffle_s_per_byte for kind in self.cluster.kinds)

    @cached_property
    def _lines(self) -> dict[tuple[str, int, int, float], GroupLine]:
        lines = self.cluster.lines if self.rule == "shared_nic" else ()
        return {line.shape: line for line in lines}

    def price(self, kind: StepKind, axes: tuple[int, ...]) -> tuple[float, float]:
        """(seconds of latency, seconds per byte) of one way of a step along `axes`.

        Bytes are the larger of the device's local bytes before and after the step.
        """
        nodes, gpus = self.mesh.topology(axes)
        if self.collectives[kind].is_local or nodes * gpus == 1:
            return 0.0, 0.0
        known = self._by_group.get((kind, nodes, gpus))
        if known is None:
            groups = self.cluster.gpus_per_node / gpus
            known = self._by_group[kind, nodes, gpus] = self.group_price(kind, nodes, gpus, groups)
        latency_s, s_per_byte = known
        uneven, _ = self.collectives[kind].bytes_along(self.mesh, axes)
        return latency_s, s_per_byte * uneven

    @cached_property
    def _by_group(self) -> dict[tuple[StepKind, int, int], tuple[float, float]]:
        return {}

    def prices(self, kind: StepKind, masks: NDArray[np.int64]) -> tuple[Prices, Prices]:
        """`price` for an array of axes, each as a number of which bit a stands for axis a."""
        known = self._by_mask.get(kind)
        if known is None:
            known = self._by_mask[kind] = np.full((2, 1 << self.mesh.num_axes), np.nan)
        alpha_s, beta_s_per_byte = known[:, masks]
        if np.isnan(alpha_s).any():
            for mask in np.unique(masks[np.isnan(alpha_s)]).tolist():
                known[:, mask] = self.price(kind, mask_axes(mask))
            alpha_s, beta_s_per_byte = known[:, masks]
        return alpha_s, beta_s_per_byte

    @cached_property
    def _by_mask(self) -> dict[StepKind, Prices]:
        return {}

    def ways(self, name: StepKind) -> tuple[StepKind, ...]:
        """The ways of a collective, the default first."""
        return tuple(e.way for e in self.collectives.entries if e.name == name)

    def cheapest(self, spec: TensorSpec, nd: NdSbp, steps: Iterable[Step]) -> tuple[Step, ...]:
        """The same `steps` from `nd` on, each by the algorithm that is cheapest for its bytes."""
        steps = tuple(steps)
        if not self.collectives.has_choices:
            return steps
        found: list[Step] = []
        for step, before, after in path_bytes(spec, steps, nd, self.mesh):
            ways = self.collectives.steps(step.source, step.target, step.axes)
            prices = [self.price(way.way, way.axes) for way in ways]
            seconds = [alpha_s + beta * max(before, after) for alpha_s, beta in prices]
            found.append(ways[seconds.index(min(seconds))])
        return tuple(found)

    def in_runs(self, kind: StepKind, size: float) -> Prices:
        """[axes as a number] seconds that are known of runs of axes; nan: not yet."""
        known = self._in_runs.get((kind, size))
        if known is None:
            known = self._in_runs[kind, size] = np.full(1 << self.mesh.num_axes, np.nan)
        return known

    @cached_property
    def _in_runs(self) -> dict[tuple[StepKind, float], Prices]:
        return {}

    def group_price(
        self, kind: str, nodes: int, gpus: int, groups: float = 1.0
    ) -> tuple[float, float]:
        """(alpha, beta) for groups of nodes x gpus devices, `groups` of them at once on each host.

        `kind` may be "send" as well: from one device to one other, on the same host if nodes is 1.
        """
        line = self._lines.get((kind, nodes, gpus, groups))
        if line is not None:
            return line.latency_s, line.s_per_byte
        work = work_of(kind, nodes, gpus, groups, self.collectives)
        link = self._intra if nodes == 1 else self.cluster.common_link("inter")
        if work.further is not None:
            line = self._lines.get((self.collectives[kind].name, nodes, gpus, groups))
            if line is not None:
                return line.latency_s + work.further * link.alpha_s, line.s_per_byte
        if kind == "send":
            latency = link.transfer_latency_s
        else:
            latency = link.call_s + work.messages * link.alpha_s
        if nodes == 1 or self.rule == "plain":
            beta = work.device * link.beta_s_per_byte
        else:
            inside = work.device * self._intra.beta_s_per_byte if gpus > 1 else 0.0
            beta = max(work.nic * link.beta_s_per_byte, inside)
        return latency, beta + work.shuffled * self._shuffle_s_per_byte


Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Exchanged:
    """A collective: bytes of the flat tensors that a device gives and gets, of its own piece.

    name: of `sbp.collectives`, without an algorithm
    """

    name: str
    given: float
    got: float
    own: float


# bytes that a collective holds beside what it is given and what it gives
OwnBytes = Callable[[Exchanged], float]


@dataclass(frozen=True)
class Travel:
    """One step of a tensor of `shape` from `source` to `target`, of which it is a `way`.

    before, after: local bytes
    copied: bytes that it takes to make the tensor contiguous
    """

    way: str
    source: NdSbp
    target: NdSbp
    before: float
    after: float
    shape: Shape
    mesh: Mesh
    device: Device
    copied: float = 0.0

    @property
    def name(self) -> str:
        """Of the collective."""
        return self.way.partition("[")[0]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        pairs = zip(self.source, self.target, strict=True)
        return tuple(axis for axis, (before, after) in enumerate(pairs) if before != after)

    @cached_property
    def share(self) -> float:
        """Of what the group has together, this device's."""
        return 1 / math.prod(self.mesh.parts[axis] for axis in self.axes)

    @cached_property
    def room(self) -> float:
        """Of what the group has together, the largest piece."""
        return 1 / math.prod(self.mesh.axes[axis].parts for axis in self.axes)

    @property
    def devices(self) -> int:
        return self.mesh.extent(self.axes)

    @cached_property
    def is_uneven(self) -> bool:
        return any(self.mesh.axes[axis].shares for axis in self.axes)

    def lies_first(self, nd: NdSbp) -> bool:
        """Whether pieces along the dim that `nd` splits lie one after the other in memory."""
        label: Placement = nd[self.axes[0]]
        return math.prod(self.shape[: label.dim]) == 1

    @property
    def is_view(self) -> bool:
        """Whether what comes out is a part of what was there: rows of a slice."""
        return self.name == "slice" and not self.copied and self.lies_first(self.target)

    def flat(self, before: float, after: float) -> Travel:
        """The same of several tensors of so many bytes, laid out one after the other."""
        source, target = (
            NdSbp(tuple(S(0) if label.is_split else label for label in nd))
            for nd in (self.source, self.target)
        )
        return replace(self, source=source, target=target, before=before, after=after, copied=0.0)

    def exchanged(self, given: float, got: float, own: float) -> Exchanged:
        return Exchanged(self.name, given, got, own)


def workspace_while(travel: Travel, own_bytes: OwnBytes) -> float:
    """Bytes that are there only while the tensor travels."""
    if travel.name == "slice":
        return 0.0
    moments = _MOMENTS.get(travel.way) or _MOMENTS[travel.name]
    return max(moments(travel, own_bytes), default=travel.after) - travel.after


def _all_gather(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    room = travel.after * travel.room
    flat = travel.devices * room
    filled = room if travel.share < travel.room or travel.copied else 0.0
    yield filled + flat + own_bytes(travel.exchanged(room, flat, room))
    if travel.is_uneven or not travel.lies_first(travel.source):
        yield flat + travel.after


def _reduce_scatter(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    room = travel.before * travel.room
    flat = travel.devices * room
    is_copy = travel.is_uneven or travel.copied or not travel.lies_first(travel.target)
    laid_out = flat if is_copy else 0.0
    yield laid_out + room + own_bytes(travel.exchanged(flat, room, room))
    if travel.share < travel.room:
        yield room + travel.after


def _all_reduce(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    piece = travel.before / travel.devices
    exchanged = travel.exchanged(travel.before, travel.after, piece)
    yield travel.copied + travel.after + own_bytes(exchanged)


def _all_to_all(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    whole = travel.before
    is_copy = travel.copied or not travel.lies_first(travel.target)
    laid_out = whole if is_copy else 0.0
    yield laid_out + whole + own_bytes(travel.exchanged(whole, whole, travel.share * whole))
    if not travel.lies_first(travel.source):
        yield whole + travel.after


def _to_partial(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    """Zeros around a piece of what was split."""
    yield travel.after + max(travel.after - travel.before, 0.0)


def _balanced_gather(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    """Pieces are made equal, gathered, and put in order."""
    part = travel.after / travel.devices
    front = travel.before if travel.copied or not travel.lies_first(travel.source) else 0.0
    evened = front if travel.before >= part else part  # the beginning of the piece, or of others
    yield evened + travel.after + own_bytes(travel.exchanged(part, travel.after, part))
    yield 2 * travel.after


def _balanced_scatter(travel: Travel, own_bytes: OwnBytes) -> Iterator[float]:
    """Pieces are put into equal parts, reduced, and made unequal."""
    part = travel.before / travel.devices
    front = travel.before if travel.copied or not travel.lies_first(travel.target) else 0.0
    yield front + travel.before
    yield travel.before + part + own_bytes(travel.exchanged(travel.before, part, part))


_MOMENTS: dict[str, Callable[[Travel, OwnBytes], Iterator[float]]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "to_partial": _to_partial,
    "all_gather[balanced]": _balanced_gather,
    "reduce_scatter[balanced]": _balanced_scatter,
}
