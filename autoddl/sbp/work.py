"""What collectives move: messages and bytes by algorithm, and more where pieces are unequal.

Along an axis with shares a ring hands on one piece a round, so its pieces are filled up to the
largest. Two other ways are cheaper the more the shares differ (HAP, Zhang et al., EuroSys 2024,
section 4.4, has the first, and broadcasts piece by piece). Of p devices with shares r that add up
to 1, per byte of the whole, with f = p max(r):

    filled up    f (p-1)/p
    balanced     (p-1)/p + (f-1)/p                what exceeds 1/p is sent to who has less, then
                                                  the ring runs on equal parts
    exchanged    max of r (1 - r)  in place of  max(r)^2 (p-1)     an all-to-all in pairs: what one
                                                  sends the other is as large as what it gets

No all-gather or reduce-scatter is below max(max(r), 1 - min(r)), which is 0.89 for shares 5:2:1:1,
where balanced is 1.06 and filled up 1.67.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .mesh import Mesh


@dataclass(frozen=True, slots=True)
class Work:
    """What a collective of one byte does; bytes are the larger of a device's before and after.

    messages:     one after the other
    nic:          bytes through each NIC; 0 inside a node
    device:       bytes that each device sends
    shuffled:     bytes that each device copies or sums itself
    nic_messages: that each node sends to others
    further:      of `messages`, those beside what the collective's default way sends, whose
                  measured line holds for all else; None: it has a line of its own
    """

    messages: float
    nic: float
    device: float
    shuffled: float = 0.0
    nic_messages: float = 0.0
    further: float | None = None

    def times(self, nic: float, device: float) -> Work:
        """The same with so many times the bytes through the NIC, and out of a device."""
        return replace(self, nic=nic * self.nic, device=device * self.device)


# The work in groups of nodes x gpus devices, so many of which share each NIC.
WorkOf = Callable[[int, int, float], Work]
# (mesh, axes) -> bytes through the busiest NIC, and out of the busiest device, per byte that it
# would be if all pieces were equal
UnevenOf = Callable[[Mesh, tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True)
class Ring:
    """Data goes round a ring of all ranks `rounds` times, and each device over it `passes` times.

    passes: a gathered tensor is written once; one to be reduced is copied and summed
    """

    rounds: int
    passes: float

    def __call__(self, nodes: int, gpus: int, groups: float) -> Work:
        size = nodes * gpus
        device, messages = self.rounds * (size - 1) / size, self.rounds * (size - 1)
        if nodes == 1:
            return Work(messages, 0.0, device, self.passes)
        return Work(messages, groups * device, device, self.passes, groups * messages)


@dataclass(frozen=True)
class EvenedRing(Ring):
    """A ring on parts that were equal from the start, or that are made so by as many messages."""

    def __call__(self, nodes: int, gpus: int, groups: float) -> Work:
        work = super().__call__(nodes, gpus, groups)
        messages, crossing = 2 * work.messages, 2 * work.nic_messages
        return replace(work, messages=messages, nic_messages=crossing, further=work.messages)


@dataclass(frozen=True)
class Pairwise:
    """Each rank sends every other its piece; a device cuts, copies and joins (`passes`)."""

    passes: float

    def __call__(self, nodes: int, gpus: int, groups: float) -> Work:
        size = nodes * gpus
        device, others = (size - 1) / size, size - gpus
        if nodes == 1:
            return Work(size - 1, 0.0, device, self.passes)
        sent = groups * gpus * others
        return Work(size - 1, sent / size, device, self.passes, sent)


def filled_up(mesh: Mesh, axes: tuple[int, ...]) -> tuple[float, float]:
    """Of a ring whose pieces are filled up to the largest."""
    factor = mesh.padding(axes)
    return factor, factor


def balanced(mesh: Mesh, axes: tuple[int, ...]) -> tuple[float, float]:
    """Of a ring whose pieces are made equal first, or afterwards."""
    if not mesh.shares or 0 not in axes:
        return 1.0, 1.0
    size, extent = mesh.extent(axes), len(mesh.shares)
    most, least = (extent * n / sum(mesh.shares) for n in (max(mesh.shares), min(mesh.shares)))
    moved = max(most - 1, 1 - least) / (size - 1)
    gpus = mesh.topology(axes)[1]  # whose pieces cross the NIC one by one, and the ring once
    return 1 + gpus * moved, 1 + moved


def exchanged(mesh: Mesh, axes: tuple[int, ...]) -> tuple[float, float]:
    """Of an all-to-all in which each pair swaps its pieces as they are."""
    if not mesh.shares or 0 not in axes:
        return 1.0, 1.0
    size, gpus = mesh.extent(axes), mesh.topology(axes)[1]
    whole = sum(mesh.shares) * size / len(mesh.shares)

    def sent(near: int) -> float:
        """To all but `near` devices that have as much."""
        most = max(n * (1 - near * n / whole) for n in mesh.shares)
        return most / max(mesh.shares) / (1 - near / size)

    return sent(gpus), sent(1)


@dataclass(frozen=True)
class Move:
    """Elements [start, start + size) of `source`'s piece, which go to `at` of `target`'s part."""

    source: int
    target: int
    start: int
    size: int
    at: int


@dataclass(frozen=True)
class Evening:
    """How pieces of `sizes` elements, of the devices of a group, become parts of equal size.

    Each device keeps the beginning of its piece; who has more than a part sends the rest to those
    who have less, all in ascending order: no two can wait for each other.
    """

    sizes: tuple[int, ...]

    @property
    def part(self) -> int:
        """Elements of each part; the last of some parts may be of nobody."""
        return -(-sum(self.sizes) // len(self.sizes))

    def kept(self, device: int) -> int:
        """Elements of its piece that stay."""
        return min(self.sizes[device], self.part)

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        found: list[Move] = []
        room = {n: size for n, size in enumerate(self.sizes) if size < self.part}
        for source, size in enumerate(self.sizes):
            start = self.kept(source)
            while start < size:
                target = min(room)
                moved = min(size - start, self.part - room[target])
                found.append(Move(source, target, start, moved, room[target]))
                start += moved
                room[target] += moved
                if room[target] == self.part:
                    del room[target]
        return tuple(found)

    def sent(self, device: int) -> list[Move]:
        """What leaves it, in ascending order of `start`."""
        return [move for move in self.moves if move.source == device]

    def received(self, device: int) -> list[Move]:
        """What comes to it, in ascending order of `at`."""
        return [move for move in self.moves if move.target == device]

    def places(self, device: int) -> Sequence[tuple[int, int]]:
        """(start, size) of its piece's elements, in their order, in all parts one by one."""
        own = (device * self.part, self.kept(device))
        return [own, *((m.target * self.part + m.at, m.size) for m in self.sent(device))]
