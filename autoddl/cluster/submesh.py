"""The part of a cluster on which one stage runs: whole hosts, or one of equal parts of a host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..sbp.mesh import Mesh

Device = tuple[int, int]  # host, number on the host


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
