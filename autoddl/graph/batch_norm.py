"""Over which rows BatchNorm takes its statistics in training; an option stored in the graph.

    batch        over the whole batch, as on one device; the batch is then not cut into
                 micro-batches
    micro_batch  over each micro-batch, on whichever devices its rows are
    shard        over the rows on the device; nothing is communicated

An operator of kind `normalization` in training mode has the attribute `statistics`, which is
omitted for `batch`. Rules, prices and kernels read it with `statistics_of`. With `shard`, the
running statistics of the devices are averaged when they are read.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from .graph import Graph, Op

BatchNorm = Literal["batch", "micro_batch", "shard"]
CHOICES: tuple[BatchNorm, ...] = get_args(BatchNorm)
TEXT = {
    "batch": "BatchNorm takes the statistics of the whole batch, which is therefore trained whole",
    "micro_batch": "BatchNorm takes the statistics of each micro-batch, not of the whole batch",
    "shard": "BatchNorm takes the statistics of each device's rows, not of the whole batch",
}


def is_training_norm(op: Op, evaluates: bool = False) -> bool:
    """True for a BatchNorm that computes statistics from the rows that it trains on.

    evaluates: in evaluation, where those do so that have no moving ones (two inputs less)
    """
    takes = op.kind == "normalization" and bool(op.attrs["training"])
    return takes and not (evaluates and len(op.inputs) == 5)


def statistics_of(op: Op) -> str:
    """Over which rows a BatchNorm in training takes its statistics."""
    return op.attrs.get("statistics", "batch")


def text(graph: Graph) -> str:
    """A sentence about a graph's BatchNorm statistics; "" if it has no BatchNorm in training."""
    return TEXT[batch_norm_of(graph)] if any(map(is_training_norm, graph.ops)) else ""


def with_batch_norm(graph: Graph, batch_norm: str) -> Graph:
    """`graph` with this choice for every BatchNorm in training. ValueError for an unknown one."""
    if batch_norm not in CHOICES:
        raise ValueError(f"unknown batch_norm {batch_norm!r}; use one of {', '.join(CHOICES)}")
    if batch_norm_of(graph) == batch_norm:
        return graph
    chosen = {} if batch_norm == "batch" else {"statistics": batch_norm}

    def choose(op: Op) -> Op:
        if not is_training_norm(op):
            return op
        rest = {key: value for key, value in op.attrs.items() if key != "statistics"}
        return dataclasses.replace(op, attrs={**rest, **chosen})

    return dataclasses.replace(graph, ops=tuple(map(choose, graph.ops)))


def batch_norm_of(graph: Graph) -> BatchNorm:
    """The choice stored in a graph; "batch" if it has no BatchNorm in training."""
    for op in graph.ops:
        if is_training_norm(op):
            return next(choice for choice in CHOICES if choice == statistics_of(op))
    return "batch"
