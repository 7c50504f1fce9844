"""What emulating computation adds to each collective, measured, so that it can be taken off.

An emulated device sleeps, wakes, asks for its collective and waits for it; a real one has the
collective in its queue behind the computation. On crowded cores the difference is milliseconds: the
ranks do not wake together, and each hands over to the framework's thread and back. For a group

    slept_s  = median(seconds of a small all-gather after a sleep)
             - median(seconds of one among many, one right after the other)
    waited_s = the same of one right after the one before was waited for

`Overhead.of` measures both. All ranks of the group call it at the same time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..backend import Backend, Tensor
from ..comm.groups import Group

SLEEP_S = 0.003
SINGLE = 15
BATCHES, CALLS = 7, 6


@dataclass(frozen=True)
class Overhead:
    """Seconds by which a collective seems longer after a sleep, and after another one."""

    slept_s: float
    waited_s: float

    @staticmethod
    def of(group: Group, transfers: bool) -> Overhead:
        """transfers: of `run_alone`"""
        queued = _median_s(group, transfers, BATCHES, CALLS)
        slept = _median_s(group, transfers, SINGLE, sleep_s=SLEEP_S)
        waited = _median_s(group, transfers, SINGLE)
        return Overhead(max(0.0, slept - queued), max(0.0, waited - queued))


def run_alone(backend: Backend, collective: Callable[[], list[Tensor]], transfers: bool) -> None:
    """Run a collective, and give back when it is over.

    transfers: others are on their way, which it must not wait for

    A look from another than the collective's own thread of OneFlow would keep a core busy: with 4
    ranks on 2 cores a step of 1.3 s took 2 to 6.
    """
    with backend.beside():
        moved = collective()
        for x in moved if transfers else [None]:
            backend.wait(x)


def _median_s(
    group: Group, transfers: bool, times: int, calls: int = 1, sleep_s: float = 0.0
) -> float:
    """Of each of so many calls, one right after the other; the first time does not count."""
    backend, seconds = group.backend, []
    token = backend.zeros((1,), "float32")

    def run() -> list[Tensor]:
        return [backend.all_gather(group.channel, token) for _ in range(calls)][-1:]

    for _ in range(1 + times):
        time.sleep(sleep_s)
        began = time.perf_counter()
        run_alone(backend, run, transfers)
        seconds.append((time.perf_counter() - began) / calls)
    return statistics.median(seconds[1:])
