"""The cluster as one mesh of atomic axes.

N nodes x G GPUs: N and G are factored into primes, and each factor is an atomic axis, node axes
first. Every process topology of every layer (AutoDDL section 4.2, the tuples of nodes and GPUs) is
a labelling of these axes, so layers may differ in topology without changing the mesh. Ranks are
row-major: the last axis varies fastest, rank = node * gpus_per_node + gpu.

Where hosts are not alike, the first axis may be *uneven*: it divides the hosts into runs of as many
each, and what is split along it goes to them by integer `shares` (HAP, Zhang et al., EuroSys 2024,
section 3: sharding ratios). Of n elements run i gets n shares[i] / sum(shares), which must be
whole: so a dim is cut at whole heads, experts or groups wherever it is made of them, as the smaller
dim is cut by the same shares. A share may be 0; such hosts still take part in what is not split,
and in collectives. All other axes are even. Along every axis

    units    = sum(shares), or the extent: what a dim's size must be a multiple of
    parts    = sum(shares) / max(shares), or the extent: the whole divided by the largest part

A device whose run gets less than the largest part holds less: `Mesh.seen_by` is the mesh whose
`parts` are those of another part.

A stage of a pipeline runs on a `SubMesh`: whole hosts, or one of equal parts of a host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

LinkClass = Literal["inter", "intra"]
Device = tuple[int, int]  # host, number on the host


def prime_factors(n: int) -> tuple[int, ...]:
    """Prime factors of n in ascending order; () for 1."""
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    if n > 1:
        factors.append(n)
    return tuple(factors)


@dataclass(frozen=True)
class Axis:
    """An atomic mesh axis: its extent (a prime, if even) and the link class that it crosses.

    shares: of what is split along it, one for each coordinate; () if all are equal
    """

    extent: int
    link: LinkClass
    shares: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        """A size that is split along it must be a multiple of this."""
        return sum(self.shares) if self.shares else self.extent

    @property
    def parts(self) -> float:
        """How many times the largest part goes into the whole."""
        return sum(self.shares) / max(self.shares) if self.shares else float(self.extent)

    def __str__(self) -> str:
        return f"{self.extent}{'n' if self.link == 'inter' else 'g'}"


@dataclass(frozen=True)
class Mesh:
    """`nodes` hosts of `gpus_per_node` devices as atomic axes.

    shares: of the runs of equally many hosts that the first axis tells apart; () if all are alike
    first_parts: the whole divided by the part along the first axis that is meant; None: the largest
    """

    nodes: int
    gpus_per_node: int
    shares: tuple[int, ...] = ()
    first_parts: float | None = None

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError(
                f"a mesh needs at least one node and one GPU per node, "
                f"got {self.nodes} x {self.gpus_per_node}"
            )
        if not isinstance(self.shares, tuple):
            raise TypeError(f"shares are a tuple of whole numbers, got {self.shares!r}")
        if self.shares and (len(self.shares) < 2 or self.nodes % len(self.shares)):
            raise ValueError(
                f"{len(self.shares)} shares do not divide {self.nodes} hosts into runs of equally "
                f"many; give one share for each host, or for each run of them"
            )
        if self.shares and (
            min(self.shares) < 0 or math.gcd(*self.shares) != 1 or sum(map(bool, self.shares)) < 2
        ):
            raise ValueError(
                "shares are whole numbers without a common factor, at least two of them not 0, got "
                f"{self.shares}"
            )

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        uneven = (Axis(len(self.shares), "inter", self.shares),) if self.shares else ()
        alike = prime_factors(self.nodes // (len(self.shares) or 1))
        return (
            *uneven,
            *(Axis(f, "inter") for f in alike),
            *(Axis(f, "intra") for f in prime_factors(self.gpus_per_node)),
        )

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Of each axis (`Axis.units`)."""
        return tuple(axis.units for axis in self.axes)

    @cached_property
    def parts(self) -> tuple[float, ...]:
        """Of each axis (`Axis.parts`), but of the first the part that is meant."""
        parts = tuple(axis.parts for axis in self.axes)
        return parts if self.first_parts is None else (self.first_parts, *parts[1:])

    def seen_by(self, part: float) -> Mesh:
        """The mesh as devices see it that get so much of the whole along its first axis.

        Only for what they hold: collectives go at the pace of the largest part.
        """
        assert self.shares and 0 <= part <= 1, "only uneven shares have parts of several sizes"
        if part == max(self.shares) / sum(self.shares):
            return self
        return replace(self, first_parts=1 / part if part else math.inf)

    @property
    def num_axes(self) -> int:
        return len(self.axes)

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.nodes * self.gpus_per_node

    def extent(self, axes: Iterable[int]) -> int:
        """Number of devices in a group along `axes`."""
        return math.prod(self.extents[a] for a in axes)

    def padding(self, axes: Iterable[int]) -> float:
        """Bytes of a collective along `axes` whose pieces are filled up to the largest.

        Per byte that it would have if all pieces were equal (HAP, section 4.4: padded all-gather).
        """
        return math.prod(self.axes[a].extent / self.axes[a].parts for a in axes)

    @property
    def fullest(self) -> int:
        """A rank that holds the largest part of whatever is split."""
        if not self.shares:
            return 0
        return self.shares.index(max(self.shares)) * self.size // len(self.shares)

    def share_of(self, rank: int) -> int:
        """Of what the first axis splits; 1 where all parts are equal, 0 of hosts that get none."""
        return self.shares[rank * len(self.shares) // self.size] if self.shares else 1

    def topology(self, axes: Iterable[int]) -> tuple[int, int]:
        """(nodes, gpus) extents of a group along `axes`: the paper's tuple."""
        chosen = tuple(axes)
        nodes = math.prod(self.axes[a].extent for a in chosen if self.axes[a].link == "inter")
        return nodes, self.extent(chosen) // nodes

    def coords(self, rank: int) -> tuple[int, ...]:
        """Coordinates of `rank`, one per axis."""
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a mesh of {self.size} devices")
        coords: list[int] = []
        for extent in reversed(self.extents):
            rank, coord = divmod(rank, extent)
            coords.append(coord)
        return tuple(reversed(coords))

    def rank(self, coords: Iterable[int]) -> int:
        rank = 0
        for coord, extent in zip(coords, self.extents, strict=True):
            rank = rank * extent + coord
        return rank

    def group(self, rank: int, axes: Iterable[int]) -> tuple[int, ...]:
        """The ranks that differ from `rank` only along `axes`, itself included, ascending."""
        chosen = set(axes)
        ranges = [
            range(extent) if a in chosen else (coord,)
            for a, (extent, coord) in enumerate(zip(self.extents, self.coords(rank), strict=True))
        ]
        return tuple(self.rank(coords) for coords in itertools.product(*ranges))

    def __str__(self) -> str:
        uneven = f" by {':'.join(map(str, self.shares))}" if self.shares else ""
        return f"{self.nodes}x{self.gpus_per_node}{uneven}"


@dataclass(frozen=True, order=True)
class SubMesh:
    """`nodes` hosts from `first_node` on, on each the `gpus` devices from `first_gpu` on."""

    first_node: int
    nodes: int
    first_gpu: int
    gpus: int

    def __post_init__(self) -> None:
        if min(self.nodes, self.gpus) < 1 or min(self.first_node, self.first_gpu) < 0:
            raise ValueError(f"a sub-mesh needs at least one device of a cluster, got {self}")

    @cached_property
    def mesh(self) -> Mesh:
        """The stage's own mesh; its ranks count from 0, row-major."""
        return Mesh(self.nodes, self.gpus)

    @property
    def shape(self) -> tuple[int, int]:
        """Hosts, and devices on each."""
        return self.nodes, self.gpus

    @property
    def size(self) -> int:
        return self.nodes * self.gpus

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The device of each of the mesh's ranks."""
        return tuple(
            (self.first_node + n, self.first_gpu + g)
            for n in range(self.nodes)
            for g in range(self.gpus)
        )

    def ranks(self, gpus_per_node: int) -> tuple[int, ...]:
        """The cluster's ranks of the devices, on hosts of `gpus_per_node`."""
        return tuple(host * gpus_per_node + gpu for host, gpu in self.devices)

    def __str__(self) -> str:
        hosts = _range(self.first_node, self.nodes)
        return f"host {hosts} devices {_range(self.first_gpu, self.gpus)}"


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
