"""The cluster as one mesh of atomic axes.

N nodes x G GPUs: N and G are factored into primes, and each factor is an atomic axis, node axes
first. Every process topology of every layer (AutoDDL section 4.2, the tuples of nodes and GPUs) is
a labelling of these axes, so layers may differ in topology without changing the mesh. Ranks are
row-major: the last axis varies fastest, rank = node * gpus_per_node + gpu.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

LinkClass = Literal["inter", "intra"]


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
    """An atomic mesh axis: its extent (a prime) and the link class that it crosses."""

    extent: int
    link: LinkClass

    def __str__(self) -> str:
        return f"{self.extent}{'n' if self.link == 'inter' else 'g'}"


@dataclass(frozen=True)
class Mesh:
    """`nodes` hosts of `gpus_per_node` devices as atomic axes."""

    nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise ValueError(
                f"a mesh needs at least one node and one GPU per node, "
                f"got {self.nodes} x {self.gpus_per_node}"
            )

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(f, "inter") for f in prime_factors(self.nodes)) + tuple(
            Axis(f, "intra") for f in prime_factors(self.gpus_per_node)
        )

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple(axis.extent for axis in self.axes)

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
        return f"{self.nodes}x{self.gpus_per_node}"
