"""Times work as the executor does it.

A sample is `calls` back-to-back calls, as in a training step, and the wait until all of them are
done, divided by `calls`. All ranks start it together and the slowest counts. Every rank
receives every rank's time, so that all decide alike when to stop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from ..comm.groups import Groups

Call = Callable[[], object]

WARM_UP_CALLS = 2  # the first call allocates and connects; the second is the first estimate


class Stopwatch:
    """Times what all ranks of `groups` do together."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.backend = groups.backend
        self._world = groups.along(range(groups.mesh.num_axes))
        self._token = groups.backend.zeros((1,), "float32")

    def meet(self) -> None:
        """Barrier: wait until all ranks are here."""
        self.backend.to_numpy(self._world.all_reduce(self._token))

    def seconds(self, call: Call | None, calls: int, samples: int) -> list[float]:
        """`samples` samples of `call` (None on an idle rank), each of the slowest rank."""
        mine = np.zeros(samples)
        for index in range(samples):
            self.meet()
            if call is not None:
                started = time.perf_counter()
                for _ in range(calls):
                    call()
                self.backend.wait()
                mine[index] = (time.perf_counter() - started) / calls
        return self.gather(mine).max(axis=0).tolist()

    def warm_up(self, call: Call | None) -> float:
        """Calls that are not counted; returns the seconds of the last one on the slowest rank."""
        return self.seconds(call, 1, WARM_UP_CALLS)[-1]

    def gather(self, values: np.ndarray) -> np.ndarray:
        """[n] float64 on each rank -> [ranks, n], the same on all."""
        mine = self.backend.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
        return self.backend.to_numpy(self._world.all_gather(mine)).reshape(self._world.size, -1)

    def agreed(self, value: float) -> float:
        """Rank 0's value, on all ranks."""
        return float(self.gather(np.array([value]))[0, 0])

    def median(self, call: Call, calls: int, samples: int) -> float:
        """The median of samples of work that each rank does alone, all at the same time."""
        return statistics.median(self.seconds(call, calls, samples))
