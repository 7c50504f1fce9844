"""What a calibration measures: collectives x group shapes x message sizes, in a fixed order.

The groups have every shape (nodes, gpus) that the mesh allows: within a host, across hosts with one
device of each, and mixed. Where several groups share a NIC, they are measured once all at a time
and once with one group per host alone. `schedule` lists the points; `axes_of` and `is_active` say
which ranks take part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ...sbp.collectives import COLLECTIVES
from ...sbp.mesh import Mesh

SENDING = tuple(entry.name for entry in COLLECTIVES.sending)
KINDS = (*SENDING, "send")
MIN_BYTES = 1 << 10  # all latency: the smallest messages that a plan may have cost as much
MAX_BYTES = 256 << 20  # all bandwidth
ITEM_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Groups of nodes x gpus devices, `groups` of them at once on each host."""

    nodes: int
    gpus: int
    groups: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus}, {self.groups} at once"


@dataclass(frozen=True, slots=True)
class Point:
    """One collective to time. bytes: the larger of a device's tensors before and after it."""

    kind: str
    shape: Shape
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind} {self.shape}, {self.bytes} bytes"


def message_sizes(max_bytes: int = MAX_BYTES, factor: int = 4) -> tuple[int, ...]:
    """1 kB, then `factor` times more each, up to `max_bytes`. ValueError if there is only one."""
    sizes = [MIN_BYTES]
    while sizes[-1] * factor <= max_bytes:
        sizes.append(sizes[-1] * factor)
    if len(sizes) < 2:
        raise ValueError(
            f"a fit needs at least two message sizes; up to {max_bytes} bytes there is only "
            f"{MIN_BYTES}: give --max-bytes {MIN_BYTES * factor} or more"
        )
    return tuple(sizes)


def shapes(mesh: Mesh) -> tuple[Shape, ...]:
    """Every group shape of the mesh, small ones first, shared and alone."""
    found: set[Shape] = set()
    for count in range(1, mesh.num_axes + 1):
        for axes in itertools.combinations(range(mesh.num_axes), count):
            nodes, gpus = mesh.topology(axes)
            groups = mesh.gpus_per_node // gpus
            found.add(Shape(nodes, gpus, groups))
            if nodes > 1:
                found.add(Shape(nodes, gpus, 1))
    return tuple(sorted(found, key=lambda s: (s.nodes * s.gpus, s.nodes, -s.groups)))


def pairs(mesh: Mesh) -> tuple[Shape, ...]:
    """The shapes of point-to-point transfers: within one host, and between two."""
    found = []
    if mesh.gpus_per_node > 1:
        found.append(Shape(1, 2, mesh.gpus_per_node // 2))
    if mesh.nodes > 1:
        found += [Shape(2, 1, groups) for groups in sorted({mesh.gpus_per_node, 1})]
    return tuple(found)


def schedule(mesh: Mesh, sizes: Sequence[int], kinds: Sequence[str] = KINDS) -> tuple[Point, ...]:
    """All points, small messages first, so that their times predict those of large ones.

    ValueError on a cluster of one device, which has nothing to measure between devices.
    """
    if mesh.size == 1:
        raise ValueError(
            "calibration measures what devices send each other; start at least two processes "
            "(--nodes, --gpus-per-node)"
        )
    if len(set(sizes)) < 2:
        raise ValueError(f"a fit needs at least two message sizes, got {list(sizes)}")
    return tuple(
        Point(kind, shape, even_bytes(kind, shape, size))
        for size in sorted(set(sizes))
        for kind in kinds
        for shape in (pairs(mesh) if kind == "send" else shapes(mesh))
    )


def even_bytes(kind: str, shape: Shape, size: int) -> int:
    """About `size`, rounded so that the pieces of all devices are equal."""
    devices = shape.nodes * shape.gpus
    unit = ITEM_BYTES * (1 if kind == "send" else devices)
    if kind != "send" and COLLECTIVES[kind].moves_split:  # both dims are cut
        unit *= devices
    return unit * max(1, round(size / unit))


def axes_of(mesh: Mesh, shape: Shape) -> tuple[int, ...]:
    """The mesh axes of groups of this shape: the last ones that fit, nodes then GPUs.

    A sending pair may consist of two devices out of more along an axis; see `pair_of`.
    """
    for count in range(mesh.num_axes, 0, -1):
        for axes in itertools.combinations(reversed(range(mesh.num_axes)), count):
            if mesh.topology(axes) == (shape.nodes, shape.gpus):
                return tuple(sorted(axes))
    raise ValueError(f"no axes of the mesh {mesh} form groups of {shape.nodes}x{shape.gpus}")


def is_active(mesh: Mesh, shape: Shape, rank: int) -> bool:
    """False for a device whose group stays idle, so that only `groups` share the NIC."""
    axes = axes_of(mesh, shape)
    if shape.groups == mesh.gpus_per_node // shape.gpus:
        return True
    others = zip(mesh.axes, mesh.coords(rank), strict=True)
    return all(
        coord == 0 or axis.link == "inter" or index in axes
        for index, (axis, coord) in enumerate(others)
    )


def pair_of(mesh: Mesh, shape: Shape, rank: int) -> tuple[int, int] | None:
    """(sender, receiver) if `rank` belongs to a sending pair, else None.

    On one host: device 0 to 1, 2 to 3, ...; between hosts: host 0 to 1, 2 to 3, ..., device by
    device. At an odd number the last one stays idle.
    """
    node, gpu = divmod(rank, mesh.gpus_per_node)
    if shape.nodes == 1:
        first = gpu - gpu % 2
        if first + 1 >= mesh.gpus_per_node:
            return None
        return node * mesh.gpus_per_node + first, node * mesh.gpus_per_node + first + 1
    first = node - node % 2
    if first + 1 >= mesh.nodes or gpu >= shape.groups:
        return None
    return first * mesh.gpus_per_node + gpu, (first + 1) * mesh.gpus_per_node + gpu
