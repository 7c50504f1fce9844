"""Times computation and collectives beside each other: how much each slows the other down.

Alone, so many products of matrices take c seconds and so many all-reduces m seconds; asked for
together, they end after p and q. While both run each has a part of its speed. If computation ends
first,

    its speed         = c / p
    a collective's    = (m - (q - p)) / p    as the rest of it runs alone

and the other way round if it ends last; `BesideTimes.slowdowns` are 1 / speed - 1. Both are made to
take about as long, so that each is beside the other nearly all the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from ..backend import Tensor
from ..comm.beside import later
from ..comm.groups import Groups
from .device import square_product
from .record import BesideTimes
from .stopwatch import Call, Stopwatch

MESSAGE_BYTES = 1 << 20  # a bucket of gradients on a slow network, where overlap matters
SIZE = 256  # of the products' matrices: a step's operators are short beside its collectives
SECONDS = 0.3  # that each takes alone: long beside what starting and waking up take
SAMPLES = 7


def measure_beside(watch: Stopwatch, groups: Groups) -> dict[str, BesideTimes]:
    """By link, of all-reduces on it beside products of matrices."""
    mesh, product = groups.mesh, square_product(groups, "float32", SIZE)
    found: dict[str, BesideTimes] = {}
    for name in ("intra", "inter"):
        axes = [n for n, axis in enumerate(mesh.axes) if axis.link == name]
        if axes:
            group = groups.along(axes)
            items = MESSAGE_BYTES // 4 // group.size * group.size
            x = groups.backend.zeros((items,), "float32")
            found[name] = _beside(watch, product, partial(group.all_reduce, x))
    return found


def _beside(watch: Stopwatch, product: Call, collective: Call) -> BesideTimes:
    calls = [(call, _calls(watch, call)) for call in (collective, product)]
    rows = []
    for _ in range(SAMPLES):  # in turns, as what else the machine does hits all alike
        alone = [watch.seconds(call, count, 1)[0] * count for call, count in calls]
        rows.append([*alone, *_ends(watch, calls)])
    alone_c, alone_p, collective_s, computation_s = np.median(rows, axis=0).tolist()
    return BesideTimes(alone_p, alone_c, computation_s, collective_s)


def _calls(watch: Stopwatch, call: Call) -> int:
    """So many that they take `SECONDS`."""
    count = max(1, round(SECONDS / max(watch.warm_up(call), 1e-6)))
    # the first calls are slower than those in a row
    return max(1, round(SECONDS / max(watch.seconds(call, count, 1)[0], 1e-6)))


def _ends(watch: Stopwatch, calls: Sequence[tuple[Call, int]]) -> list[float]:
    """Seconds after which the slowest rank has done all calls of each kind, asked for at once.

    calls: of the collective, and of the product
    """
    watch.meet()
    started = time.perf_counter()

    def ended(x: Tensor) -> float:
        watch.backend.wait(x)
        return time.perf_counter() - started

    def all_of(call: Call, count: int) -> Tensor:
        return [call() for _ in range(count)][-1]

    collective, product = calls
    with ThreadPoolExecutor(2) as pool:
        coming = later(watch.backend.thread, partial(all_of, *collective))
        first = pool.submit(lambda: ended(coming()))
        made = all_of(*product)
        mine = np.array([first.result(), pool.submit(ended, made).result()])
    return watch.gather(mine).max(axis=0).tolist()
