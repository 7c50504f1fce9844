"""How others divide the rows of a batch among hosts that are not alike, at data parallelism.

    Whale    in proportion to single-precision FLOP/s; what exceeds a device's memory is shifted to
             others (Jia et al., ATC 2022, Algorithm 1)
    Metis    in proportion to 1 / seconds of one row, the rows that rounding leaves to the largest
             remainders (Um et al., ATC 2024, and its code's data balancer)
    Poplar   rows that all devices compute in the same time by their measured curves, in ZeRO
             (Zhang et al., AAAI 2025)

Each divides rows, of which shares are as near as ours to the speeds are. Whale's and Metis' stages
are not here: these are the rows of one stage of all devices. Seconds are the planner's, where Metis
and Poplar measure, and no run of hosts gets nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...cluster.spec import Cluster
from ...cost.model import CostModel
from ...graph.graph import Graph
from ...plans.figures import figures
from ...plans.plan import Plan
from ..mesh import plan_mesh
from ..options import PlanOptions
from ..shares import (
    Shares,
    Strategies,
    divided_rows,
    proportional_shares,
    whole_shares,
)
from ..tables.groups import MicroBatches
from .spaces import data_parallel

_MOST_UNITS = 4096  # of rows: finer than any shares


def whale(flops: Sequence[float], memory: Sequence[float], needed: float, units: int) -> Shares:
    """Algorithm 1 for devices of so many FLOP/s and bytes, in whole units of the load.

    needed: bytes of the whole load, of which a device is taken to need its part. Shifted is what is
    too much, or what the other has room for; as printed, a device is not looked at again once
    something was shifted from it.
    """
    load = list(_by_remainders([units * own / sum(flops) for own in flops], units))
    room = [math.floor(units * own / needed) for own in memory]
    full = [n for n in range(len(load)) if load[n] > room[n]]
    free = [n for n in range(len(load)) if load[n] <= room[n]]
    while full and free:
        peak = max(full, key=lambda n: load[n] / memory[n])
        valley = min(free, key=lambda n: (load[n] / flops[n], load[n] / memory[n]))
        shifted = min(load[peak] - room[peak], room[valley] - load[valley])
        if shifted > 0:
            load[peak] -= shifted
            load[valley] += shifted
            full.remove(peak)
        else:
            free.remove(valley)
    return tuple(load)


def metis(row_s: Sequence[float], units: int) -> Shares:
    """Units for devices that take so long for one row."""
    speed = [1 / own for own in row_s]
    return _by_remainders([units * own / sum(speed) for own in speed], units)


def poplar(curves: NDArray[np.float64], units: int) -> Shares:
    """Units for devices that take `curves[n, m - 1]` seconds for m: so that the last ends soonest.

    What then is left over goes back where it ends the latest.
    """
    curves = np.maximum.accumulate(curves, axis=1)
    ends = np.unique(curves)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if int(_done(curves, ends[middle]).sum()) >= units:
            high = middle
        else:
            low = middle + 1
    most = _done(curves, ends[low])
    while most.sum() > units:
        last = max(range(len(most)), key=lambda n: (most[n] > 1, curves[n, most[n] - 1], n))
        most[last] -= 1
    return tuple(int(own) for own in most)


def _done(curves: NDArray[np.float64], within_s: float) -> NDArray[np.int64]:
    """The units that each device computes in so long, at least one."""
    return np.maximum((curves <= within_s).sum(axis=1), 1)


def _by_remainders(wanted: Sequence[float], units: int) -> Shares:
    """Whole units, at least one each: rounded down, then one more to the largest remainders."""
    shares = [max(1, math.floor(own + 1e-9)) for own in wanted]
    order = sorted(range(len(wanted)), key=lambda n: math.floor(wanted[n] + 1e-9) - wanted[n])
    for n in order[: max(units - sum(shares), 0)]:
        shares[n] += 1
    while sum(shares) > units:
        shares[max(range(len(shares)), key=lambda n: (shares[n], n))] -= 1
    return tuple(shares)


@dataclass(frozen=True)
class Split:
    """Another's shares, and the known scheme in which it has them."""

    name: str
    family: str
    shares: Shares


def splits(
    graph: Graph, micro: MicroBatches, model: CostModel, options: PlanOptions
) -> Iterator[Split]:
    """What each of the three does with a model; none where the rows cannot be divided."""
    cluster = model.cluster
    rows, runs = divided_rows(cluster, graph.batch), len(cluster.runs)
    units = max(n for n in range(1, min(rows, _MOST_UNITS) + 1) if rows % n == 0)
    at = proportional_shares(cluster, graph) or whole_shares((2,) + (1,) * (runs - 1), rows)
    if units < runs or len(set(at)) < 2:
        return
    serial = replace(model, overlap=False, memory_limit_bytes=math.inf)
    plan = _by_rows(micro, replace(serial, cluster=cluster.with_shares(at)), options)
    strategies = Strategies.of(plan)
    kinds = [list(dict.fromkeys(strategies.groups)).index(group) for group in strategies.groups]
    devices = [strategies.devices[kind] for kind in kinds]
    one = np.array([1 / graph.batch])
    row_s = [float(sum(a.seconds(own, one)[0] for a in strategies.alike)) for own in devices]
    curves = strategies.loads(units).compute_s.sum(axis=0)[kinds]
    each = cluster.num_devices // runs
    flops = [own.flops_for("float32") for own in devices]
    memory = [each * own.memory_bytes for own in devices]
    found: dict[str, tuple[str, Callable[[], Shares]]] = {
        "Whale's Algorithm 1": (
            "data parallel",
            lambda: whale(flops, memory, _alone_bytes(micro, serial, options), units),
        ),
        "Metis' split": ("data parallel", lambda: metis(row_s, units)),
        "Poplar's split": ("ZeRO", lambda: poplar(curves, units)),
    }
    for name, (family, shares) in found.items():
        yield Split(name, family, whole_shares(shares(), rows))


def _by_rows(micro: MicroBatches, model: CostModel, options: PlanOptions) -> Plan:
    """Data parallelism in one micro-batch."""
    own = replace(options, baselines=False, hints=(), budget_seconds=None)
    return Plan.on_one_mesh(plan_mesh(micro, (1,), model, own, data_parallel(micro.graph(1))).stage)


def _alone_bytes(micro: MicroBatches, model: CostModel, options: PlanOptions) -> float:
    """Bytes of the whole load on one device."""
    where = model.cluster
    alone = Cluster(where.name, 1, 1, where.device, where.intra, where.inter)
    plan = _by_rows(micro, replace(model, cluster=alone), options)
    return max(figures(plan).needed_bytes)
