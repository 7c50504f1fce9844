"""Bytes that the steps of a redistribution move: through a node's NIC, and inside the nodes.

A group of p ranks lies on n nodes with g GPUs each, of the G on a node. Groups along the same axes
run at once, so if n > 1 G/g of them cross each NIC. With `full` the gathered (or to be scattered or
reduced) bytes, and `local` the bytes of a shard, one NIC sends

    all-gather, reduce-scatter   (G/g) (p-1)/p full        all-reduce   twice that
    all-to-all                   G (p-g)/p local

by ring and pairwise algorithms, and receives as much. A group inside a node (n = 1) sends nothing
through it; each of its devices sends (p-1)/p full, twice that, or (p-1)/p local. The numbers are
exact for even shards; uneven ones count as the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .layout import TensorSpec, local_shape
from .mesh import Mesh
from .placement import NdSbp
from .steps import Step


def path_bytes(
    spec: TensorSpec, steps: Sequence[Step], source: NdSbp, mesh: Mesh
) -> list[tuple[Step, int, int]]:
    """Each step with the bytes of the largest shard before and after it."""
    counted: list[tuple[Step, int, int]] = []
    nd, before = source, _shard_bytes(spec, source, mesh)
    for step in steps:
        nd = step.apply(nd)
        after = _shard_bytes(spec, nd, mesh)
        counted.append((step, before, after))
        before = after
    return counted


def nic_bytes(spec: TensorSpec, source: NdSbp, steps: Sequence[Step], mesh: Mesh) -> float:
    """Bytes that one node sends through its NIC (and receives) while `steps` run."""
    total = 0.0
    for step, before, after in path_bytes(spec, steps, source, mesh):
        nodes, gpus = mesh.topology(step.axes)
        if step.is_free or nodes == 1:
            continue
        size = nodes * gpus
        if step.kind == "all_to_all":
            total += mesh.gpus_per_node * (size - gpus) / size * before
        else:
            groups = mesh.gpus_per_node / gpus
            total += _rounds(step) * groups * (size - 1) / size * max(before, after)
    return total


def nic_messages(steps: Sequence[Step], mesh: Mesh) -> float:
    """Messages that one node sends through its NIC while `steps` run: one a hop that leaves it."""
    total = 0.0
    for step in steps:
        nodes, gpus = mesh.topology(step.axes)
        if step.is_free or nodes == 1:
            continue
        if step.kind == "all_to_all":
            total += mesh.gpus_per_node * (nodes - 1) * gpus
        else:
            total += _rounds(step) * mesh.gpus_per_node / gpus * (nodes * gpus - 1)
    return total


def device_intra_bytes(spec: TensorSpec, source: NdSbp, steps: Sequence[Step], mesh: Mesh) -> float:
    """Bytes that one device sends (and receives) in groups that lie inside a node."""
    total = 0.0
    for step, before, after in path_bytes(spec, steps, source, mesh):
        nodes, size = mesh.topology(step.axes)
        if not step.is_free and nodes == 1:
            total += _rounds(step) * (size - 1) / size * max(before, after)
    return total


def device_bytes(spec: TensorSpec, source: NdSbp, steps: Sequence[Step], mesh: Mesh) -> float:
    """Bytes that one device receives (and sends) while `steps` run, over whatever link."""
    total = 0.0
    for step, before, after in path_bytes(spec, steps, source, mesh):
        size = mesh.extent(step.axes)
        if step.kind == "all_to_all":
            total += (size - 1) / size * before
        elif not step.is_free:
            total += _rounds(step) * (size - 1) / size * max(before, after)
    return total


def _rounds(step: Step) -> int:
    """How often the data goes round the ring: an all-reduce scatters and gathers."""
    return 2 if step.kind == "all_reduce" else 1


def _shard_bytes(spec: TensorSpec, nd: NdSbp, mesh: Mesh) -> int:
    return spec.item_bytes * math.prod(local_shape(spec.shape, nd, mesh))
