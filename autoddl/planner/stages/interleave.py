"""Cuts a model's layers into the parts of an interleaved pipeline: `chunks` parts on each stage.

The stages are equal parts of the cluster, whole hosts or equal parts of one, and part v lies on
stage v mod s. With s stages of c parts each, m micro-batches and t seconds a micro-batch of the
slowest part (forward and backward), an iteration takes about

    T = (m c + s - 1) t + y

(`simulate`), y being the most that the parts of a stage do once an iteration. So the cuts are those
with the least t: by dynamic programming, best(k, l) = min over j of max(t(l, j), best(k - 1, j)).
"""

from __future__ import annotations

import math
from functools import lru_cache

from ...cluster.submesh import SubMesh
from ...plans.records import StagePrice
from .partition import Partition, PriceFn, Shape, Stage


def equal_shapes(nodes: int, gpus: int, stages: int) -> Shape:
    """Hosts and devices of each of `stages` equal parts. ValueError if there are none such."""
    if nodes % stages == 0:
        return nodes // stages, gpus
    if stages % nodes == 0 and gpus % (stages // nodes) == 0:
        return 1, gpus * nodes // stages
    raise ValueError(
        f"an interleaved pipeline has equal stages: {nodes} x {gpus} devices do not divide into "
        f"{stages} parts; ask for another number of stages"
    )


def interleaved_partition(
    layers: int, nodes: int, gpus: int, stages: int, chunks: int, micro_batches: int, price: PriceFn
) -> Partition:
    """`stages` x `chunks` parts in order, stage by stage and chunk by chunk.

    Raises ValueError if there are more parts than layers, or no equal stages.
    """
    parts = stages * chunks
    if parts > layers:
        raise ValueError(
            f"{stages} stages of {chunks} parts are more than the model's {layers} layers; "
            "ask for fewer stages or chunks"
        )
    shape = equal_shapes(nodes, gpus, stages)

    @lru_cache(None)
    def priced(first: int, last: int) -> StagePrice | None:
        return price(first, last, shape, micro_batches, 1)

    def seconds(first: int, last: int) -> float:
        found = priced(first, last)
        return math.inf if found is None else found.forward_s + found.backward_s

    @lru_cache(None)
    def best(left: int, first: int) -> tuple[float, int]:
        """(slowest part, end of the first part) of `left` parts from layer `first` on."""
        if left == 1:
            return seconds(first, layers), layers
        return min(
            (max(seconds(first, j), best(left - 1, j)[0]), j)
            for j in range(first + 1, layers - left + 2)
        )

    found: list[Stage] = []
    first = 0
    for part in range(parts):
        last = best(parts - part, first)[1]
        own = priced(first, last)
        if own is None:
            raise ValueError(f"layers {first}-{last - 1} cannot run on {shape[0]} x {shape[1]}")
        found.append(Stage(first, last, _place(part % stages, shape, gpus), own, 0.0))
        first = last
    slowest = best(parts, 0)[0]
    once = max(sum(s.price.once_s for s in found[i::stages]) for i in range(stages))
    total = (micro_batches * chunks + stages - 1) * slowest + once
    return Partition(tuple(found), micro_batches, total)


def _place(stage: int, shape: Shape, gpus: int) -> SubMesh:
    nodes, each = shape
    host, device = divmod(stage * nodes * each, gpus)
    return SubMesh(host, nodes, device, each)
