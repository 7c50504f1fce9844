"""What emulating computation adds to each collective, measured, so that it can be taken off.

An emulated device waits, wakes, asks for its collective and waits for its end; a real one has the
collective in its queue behind the computation. On crowded cores the difference is milliseconds: the
ranks do not wake together, and each hands over to OneFlow's thread and back. For a group it is

    overhead = median(seconds of a small all-gather between two waits)
             - median(seconds of one among many, one right after the other)

`overhead_s` measures both. All ranks of the group call it at the same time.
"""

from __future__ import annotations

import statistics
import time

from ..backend import Tensor
from ..comm.groups import Group

WAIT_S = 0.003
WAITS = 15
BATCHES, CALLS = 7, 6


def overhead_s(group: Group) -> float:
    """Seconds by which a collective of `group` seems longer between waits; never negative."""
    token = group.backend.zeros((1,), "float32")
    alone = [_after_a_wait(group, token) for _ in range(1 + WAITS)][1:]
    queued = [_queued(group, token) for _ in range(BATCHES)]
    return max(0.0, statistics.median(alone) - statistics.median(queued))


def _after_a_wait(group: Group, token: Tensor) -> float:
    time.sleep(WAIT_S)
    began = time.perf_counter()
    group.all_gather(token)
    group.backend.wait()
    return time.perf_counter() - began


def _queued(group: Group, token: Tensor) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        group.all_gather(token)
    group.backend.wait()
    return (time.perf_counter() - began) / CALLS
