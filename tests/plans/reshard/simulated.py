"""Executes a resharding plan on NumPy arrays, to prove what arrives and count what is sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoddl.plans.reshard.plan import ReshardPlan
from autoddl.plans.reshard.strategies import Box, End, UnitTask
from autoddl.sbp.layout import local_slices
from autoddl.sbp.mesh import Device


@dataclass(frozen=True)
class Delivered:
    """shards: per rank of the target mesh; into, out: counted bytes through each host's NIC."""

    shards: tuple[NDArray, ...]
    into: Counter[int]
    out: Counter[int]


def carry_out(plan: ReshardPlan, whole: NDArray) -> Delivered:
    """Execute the plan's moves on the source's shards of `whole`, one after the other.

    AssertionError if a device sends what it does not have, or lacks something at the end.
    """
    into: Counter[int] = Counter()
    out: Counter[int] = Counter()
    held: dict[tuple[int, Device], tuple[NDArray, NDArray]] = {}
    sources = dict(zip(plan.source.place.devices, _shards(plan.source, whole), strict=True))

    def slice_of(task: UnitTask, device: Device) -> tuple[NDArray, NDArray]:
        """(values, which of them are there) of the task's slice on a device, flat."""
        key = id(task), device
        if key not in held:
            if device in task.senders:
                values = _cut(plan, sources[device], device, task.box).reshape(-1)
                held[key] = values, np.ones(task.numel, dtype=bool)
            else:
                held[key] = np.zeros(task.numel, whole.dtype), np.zeros(task.numel, dtype=bool)
        return held[key]

    for task, move in plan.moves():
        values, there = slice_of(task, move.sender)
        part = slice(move.start, move.stop)
        assert there[part].all(), f"{move} sends what its sender does not have"
        taken, arrived = slice_of(task, move.receiver)
        taken[part], arrived[part] = values[part], True
        if move.sender[0] != move.receiver[0]:
            n_bytes = (move.stop - move.start) * task.item_bytes
            into[move.receiver[0]] += n_bytes
            out[move.sender[0]] += n_bytes
    return Delivered(_assemble(plan, whole, held), into, out)


def _assemble(
    plan: ReshardPlan, whole: NDArray, held: dict[tuple[int, Device], tuple[NDArray, NDArray]]
) -> tuple[NDArray, ...]:
    target, shards = plan.target, []
    for rank, device in enumerate(target.place.devices):
        slices = local_slices(plan.spec.shape, target.nd, target.mesh, rank)
        shard = np.zeros([s.stop - s.start for s in slices], whole.dtype)
        filled = np.zeros(shard.shape, dtype=bool)
        for item in plan.scheduled:
            task = item.delivery.task
            if device in task.receivers:
                values, there = held[id(task), device]
                assert there.all(), f"{device} lacks a part of {task.box}"
                at = _within(task.box, slices)
                assert not filled[at].any(), f"{device} gets a part of {task.box} twice"
                shard[at] = values.reshape([stop - start for start, stop in task.box])
                filled[at] = True
        assert filled.all(), f"{device} lacks a part of its shard"
        shards.append(shard)
    return tuple(shards)


def _shards(end: End, whole: NDArray) -> list[NDArray]:
    mesh = end.mesh
    return [whole[local_slices(whole.shape, end.nd, mesh, rank)] for rank in range(mesh.size)]


def _cut(plan: ReshardPlan, shard: NDArray, device: Device, box: Box) -> NDArray:
    """The box cut out of the device's own shard."""
    source = plan.source
    rank = source.place.devices.index(device)
    return shard[_within(box, local_slices(plan.spec.shape, source.nd, source.mesh, rank))].copy()


def _within(box: Box, slices: tuple[slice, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(start - s.start, stop - s.start) for (start, stop), s in zip(box, slices, strict=True)
    )
