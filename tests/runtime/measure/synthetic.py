"""Medians of a machine whose numbers are known, with noise and outliers."""

import numpy as np

from autoddl.cluster.link import Link
from autoddl.cost.collectives import work_of
from autoddl.runtime.measure.schedule import Point, message_sizes, schedule
from autoddl.sbp.mesh import Mesh

INTRA = Link(alpha_s=1e-4, beta_s_per_byte=1e-9, call_s=4e-4, transfer_s=3e-4)
INTER = Link(alpha_s=2e-4, beta_s_per_byte=8e-9, call_s=5e-4, transfer_s=6e-4)
SHUFFLE = 2e-9


def seconds(point: Point, intra: Link = INTRA, inter: Link = INTER) -> float:
    """The price model, written out once more."""
    shape = point.shape
    work = work_of(point.kind, shape.nodes, shape.gpus, shape.groups)
    link = intra if shape.nodes == 1 else inter
    if point.kind == "send":
        latency = link.transfer_latency_s
    else:
        latency = link.call_s + work.messages * link.alpha_s
    beta = work.device * intra.beta_s_per_byte
    if shape.nodes > 1:
        inside = beta if shape.gpus > 1 else 0.0
        beta = max(work.nic * inter.beta_s_per_byte, inside)
    return latency + point.bytes * (beta + work.shuffled * SHUFFLE)


def medians(
    nodes: int, gpus: int, noise: float = 0.05, outliers: float = 0.08, seed: int = 0
) -> dict[Point, float]:
    """Log-normal noise; a share of `outliers` takes 2 to 10 times as long."""
    rng = np.random.default_rng(seed)
    found: dict[Point, float] = {}
    for point in schedule(Mesh(nodes, gpus), message_sizes(1 << 24)):
        found[point] = seconds(point) * float(np.exp(rng.normal(0, noise)))
        if rng.random() < outliers:
            found[point] *= float(rng.uniform(2, 10))
    return found
