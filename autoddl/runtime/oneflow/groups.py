"""Collectives of local tensors in the groups of ranks along mesh axes.

OneFlow's own local collectives know only the whole world. A group's ranks form a one-dim placement
instead: the local tensor is copied into the local part of an empty global tensor on it, which
changes label there with exactly one collective, S0 -> B, P -> S0, P -> B or S0 -> S1, all of them
on flat contiguous buffers. A change of label of a shaped tensor would take detours (S1 -> B is an
all-to-all and an all-gather), so `redistribute.py` brings dims to the front itself.

On the CPU S0 -> S1 sends one pair's piece at a time, in one direction, while most ranks wait: with
4 hosts it takes 3 times as long as the bytes need. There the pieces are exchanged pair by pair
instead (`exchange.py`), by an all-gather of the two, which sends both ways at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import oneflow as flow

from ...sbp.mesh import Mesh
from ..jobs.exchange import rounds

# what a collective cannot carry travels as a type that it can
_CARRIERS = {flow.uint8: flow.int32}
_CPU_CARRIERS = {**_CARRIERS, flow.float16: flow.float32, flow.bfloat16: flow.float32}

_SPLIT_ROWS = flow.sbp.split(0)
_SPLIT_COLUMNS = flow.sbp.split(1)
_BROADCAST = flow.sbp.broadcast
_PARTIAL = flow.sbp.partial_sum


@dataclass(frozen=True)
class Traffic:
    """One collective that ran: its kind, the axes and the bytes of this rank's input."""

    kind: str
    axes: tuple[int, ...]
    bytes: int


class Watch(Protocol):
    """Told of each collective of this rank, when it is about to start and when it is asked for."""

    def before_collective(self, group: Group) -> None: ...

    def after_collective(self, group: Group) -> None: ...


@dataclass
class Group:
    """The ranks that differ from this one only along `axes`, ascending.

    index: this rank's place among them

    All methods take and give local tensors and must be called by every rank of the group.
    """

    axes: tuple[int, ...]
    ranks: tuple[int, ...]
    index: int
    placement: Any
    device: str
    groups: Groups = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_gather(self, x: flow.Tensor) -> flow.Tensor:
        """[n] on each rank -> [size * n], in rank order."""
        return self._relabel("all_gather", x, (x.shape[0] * self.size,), _SPLIT_ROWS, _BROADCAST)

    def reduce_scatter(self, x: flow.Tensor) -> flow.Tensor:
        """[size * n] on each rank -> the sum's piece [n] that belongs to this rank."""
        return self._relabel("reduce_scatter", x, (x.shape[0],), _PARTIAL, _SPLIT_ROWS)

    def all_reduce(self, x: flow.Tensor) -> flow.Tensor:
        """[...] on each rank -> the sum [...]."""
        flat = x.reshape(-1)
        summed = self._relabel("all_reduce", flat, tuple(flat.shape), _PARTIAL, _BROADCAST)
        return summed.reshape(*x.shape)

    def all_to_all(self, x: flow.Tensor) -> flow.Tensor:
        """[size, n]: row j is for rank j -> [size, n]: row i is from rank i."""
        if self.device == "cpu" and self.size > 1:
            return self._exchange(x.reshape(self.size, -1))
        flat = x.reshape(1, -1)
        shape = (self.size, flat.shape[1])
        got = self._relabel("all_to_all", flat, shape, _SPLIT_ROWS, _SPLIT_COLUMNS)
        return got.reshape(self.size, -1)

    def _exchange(self, x: flow.Tensor) -> flow.Tensor:
        """An all-to-all in rounds; in each of them this rank and one other swap their rows."""
        self.groups.start(self, Traffic("all_to_all", self.axes, x.numel() * x.element_size()))
        rows = list(x)
        for other in rounds(self.size, self.index):
            mine, theirs = self.ranks[self.index], self.ranks[other]
            placement = self.groups.pair((min(mine, theirs), max(mine, theirs)))
            both = _change(rows[other], (2 * x.shape[1],), placement, _SPLIT_ROWS, _BROADCAST)
            rows[other] = both.reshape(2, -1)[1 if mine < theirs else 0]
        self.groups.end(self)
        return flow.stack(rows)

    def all_max(self, x: flow.Tensor) -> flow.Tensor:
        """[...] on each rank -> the elementwise maximum [...], with an all-reduce's bytes.

        OneFlow reduces sums only: each rank takes the maximum of one piece and all gather them.
        """
        if self.size == 1:
            return x
        n = x.numel()
        flat = _pad(x.reshape(-1), -n % self.size)
        piece = self.all_to_all(flat.reshape(self.size, -1)).amax(dim=0)
        return self.all_gather(piece).narrow(0, 0, n).reshape(*x.shape)

    def _relabel(
        self, kind: str, x: flow.Tensor, shape: tuple[int, ...], source: Any, target: Any
    ) -> flow.Tensor:
        """Read local `x` as a rank's part of a global [shape] placed as `source`; its `target`."""
        if self.size == 1:
            return x
        self.groups.start(self, Traffic(kind, self.axes, x.numel() * x.element_size()))
        moved = _change(x, shape, self.placement, source, target)
        self.groups.end(self)
        return moved


def _change(
    x: flow.Tensor, shape: tuple[int, ...], placement: Any, source: Any, target: Any
) -> flow.Tensor:
    """The local part of `target` of what is [shape] on `placement` and here `x` of `source`."""
    dtype = x.dtype
    carrier = (_CPU_CARRIERS if placement.type == "cpu" else _CARRIERS).get(dtype, dtype)
    whole = flow.empty(*shape, dtype=carrier, placement=placement, sbp=[source])
    whole.to_local().copy_(x.to(carrier))
    moved = whole.to_global(placement=placement, sbp=[target], check_meta=False)
    return moved.to_local().to(dtype)


def _pad(x: flow.Tensor, count: int) -> flow.Tensor:
    """`x` [n] and `count` copies of its last element, which change no maximum."""
    return flow.cat([x, x[-1:].expand(count)]) if count else x


class Groups:
    """The groups of one rank of a mesh, made once each.

    first: the job's rank that is the mesh's rank 0; a pipeline stage's mesh is a part of the job
    Set `log` to a list to record traffic, `watch` to be told of each collective.
    """

    def __init__(self, mesh: Mesh, rank: int, device: str = "cpu", first: int = 0) -> None:
        self.mesh = mesh
        self.rank = rank
        self.device = device
        self.first = first
        self.log: list[Traffic] | None = None
        self.watch: Watch | None = None
        self._groups: dict[tuple[int, ...], Group] = {}
        self._pairs: dict[tuple[int, int], Any] = {}

    def along(self, axes: Iterable[int]) -> Group:
        """The group of this rank along `axes`."""
        key = tuple(sorted(set(axes)))
        if key not in self._groups:
            ranks = self.mesh.group(self.rank, key)
            placement = self._placement(ranks) if len(ranks) > 1 else None
            self._groups[key] = Group(
                key, ranks, ranks.index(self.rank), placement, self.device, self
            )
        return self._groups[key]

    def pair(self, ranks: tuple[int, int]) -> Any:
        """The placement of two ranks, of which this one is one."""
        if ranks not in self._pairs:
            self._pairs[ranks] = self._placement(ranks)
        return self._pairs[ranks]

    def _placement(self, ranks: Iterable[int]) -> Any:
        return flow.placement(self.device, ranks=[self.first + r for r in ranks])

    def start(self, group: Group, traffic: Traffic) -> None:
        """A collective of the group is about to start."""
        if self.log is not None:
            self.log.append(traffic)
        if self.watch is not None:
            self.watch.before_collective(group)

    def end(self, group: Group) -> None:
        """A collective of the group has been asked for."""
        if self.watch is not None:
            self.watch.after_collective(group)
