"""What emulating computation adds to each collective, measured, so that it can be taken off.

An emulated device waits, wakes and asks for its collective; a real one has the collective in its
queue behind the computation. On crowded cores the difference is milliseconds: the
ranks do not wake together, and each hands over to OneFlow's thread and back. For a group it is

    overhead = median(seconds of a small all-gather between two waits)
             - median(seconds of one among many, one right after the other)

`overhead_s` measures both. All ranks of the group call it at the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future

from ..backend import Tensor
from ..comm.groups import Group

Arrival = Callable[[Tensor], Future[float]]  # when a tensor will have been there

WAIT_S = 0.003
WAITS = 15
BATCHES, CALLS = 7, 6


def overhead_s(group: Group, arrival: Arrival) -> float:
    """Seconds by which a collective of `group` seems longer after a wait; never negative."""
    token = group.backend.zeros((1,), "float32")
    alone = [_seconds(group, token, arrival, 1, WAIT_S) for _ in range(1 + WAITS)][1:]
    queued = [_seconds(group, token, arrival, CALLS) for _ in range(BATCHES)]
    return max(0.0, statistics.median(alone) - statistics.median(queued))


def _seconds(
    group: Group, token: Tensor, arrival: Arrival, calls: int, wait_s: float = 0.0
) -> float:
    """Of each of so many calls, one right after the other."""
    time.sleep(wait_s)
    began = time.perf_counter()
    moved = [group.all_gather(token) for _ in range(calls)]
    return (arrival(moved[-1]).result() - began) / calls
