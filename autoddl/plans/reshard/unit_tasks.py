"""Decomposes cross-mesh resharding into unit tasks (AlpaComm section 2.2 and appendix B).

A tensor lies on a source mesh under one NdSbp and is needed on another mesh under another. Its
shards on either side are boxes of elements; different shards of one side do not overlap. Each
intersection of a source shard with a target shard is one unit task: any device that has the source
shard may send it, and all devices that need the target shard must receive it. Splits may be uneven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...cluster.submesh import Device, SubMesh
from ...sbp.layout import TensorSpec, local_slices
from ...sbp.placement import NdSbp

Box = tuple[tuple[int, int], ...]  # (start, stop) per dim


@dataclass(frozen=True)
class End:
    """One side of a resharding: the devices that hold the tensor, and its placement."""

    place: SubMesh
    nd: NdSbp

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
    for rank, device in enumerate(end.place.devices):
        slices = local_slices(spec.shape, end.nd, end.place.mesh, rank)
        found.setdefault(tuple((s.start, s.stop) for s in slices), []).append(device)
    return {box: tuple(devices) for box, devices in found.items()}
