"""When an emulated device is free, and when what it has asked for has come.

A device computes in one queue and communicates in another, beside it. Computation is a sum of
seconds; collectives are real, on the framework's thread for communication. So

    a collective starts   when the computation asked for before it has taken its time, and the
                          collectives before it have ended
    computation waits     for a collective only where an operator needs what it brings

The clock sleeps once before each collective instead of once an operator, which also hides the time
that Python takes meanwhile. What a sleep ends late, and what waking up together costs a group's
collective (`overhead`), is taken off its end, unless it had to queue behind another one anyhow.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from ..backend import Backend, Tensor

# Collectives on their way at once whose ends are seen on time; a step has few beside computation.
_WATCHED = 16


@dataclass(frozen=True)
class Sent:
    """A collective that was asked for.

    began:    when, by `time.perf_counter`
    extra_s:  how much later than on a device it ends at most, for being emulated around
    arrived:  when its result was there
    """

    began: float
    extra_s: float
    arrived: Future[float]

    def end(self) -> float:
        """When it would have ended on a device; waits for it."""
        arrived = self.arrived.result()
        return arrived - min(self.extra_s, arrived - self.began)


@dataclass
class Clock:
    """When the emulated device is free again, in seconds of `time.perf_counter`.

    late:      how much too late the last sleep has ended
    stalled_s: seconds since the step began in which computation waited for collectives, and these
        for other ranks, without what the emulation itself adds
    last:      the collective asked for last
    """

    backend: Backend
    free_at: float = 0.0
    late: float = 0.0
    stalled_s: float = 0.0
    last: Sent | None = None
    _began: float = 0.0
    _queues: bool = False
    _watchers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_WATCHED, "arrival")
    )

    def start(self) -> None:
        """A step begins now."""
        self.free_at = max(self.free_at, time.perf_counter())
        self.stalled_s = 0.0
        self.last = None

    def compute(self, seconds: float) -> None:
        """The device computes for so long after what it does already."""
        self.free_at += seconds

    def catch_up(self) -> None:
        """Wait until the computation so far has taken its time."""
        missing = self.free_at - time.perf_counter()
        self.late = 0.0
        if missing > 0:
            time.sleep(missing)
            self.late = time.perf_counter() - self.free_at

    def before_collective(self) -> None:
        """A collective of what is computed so far is about to be asked for."""
        self.catch_up()
        self._queues = self.last is not None and not self.last.arrived.done()
        self._began = time.perf_counter()

    def after_collective(self, moved: Tensor, overhead_s: float = 0.0) -> Sent:
        """It was asked for, and gives `moved`; overhead_s: what it takes longer for a sleep."""
        extra_s = 0.0 if self._queues else self.late + overhead_s
        self.last = Sent(self._began, extra_s, self.arrival(moved))
        return self.last

    def arrival(self, moved: Tensor) -> Future[float]:
        """When `moved` will have been there.

        A thread of its own begins to wait for it before anything else is asked for: a framework
        with one thread for everything would else answer after that.
        """

        def wait() -> float:
            self.backend.wait(moved)
            return time.perf_counter()

        return self._watchers.submit(wait)

    def wait_for(self, sent: Sent) -> None:
        """Computation goes on when the collective has ended."""
        end = sent.end()
        self.stalled_s += max(0.0, end - self.free_at)
        self.free_at = max(self.free_at, end)

    def finish(self) -> None:
        """Wait for all computation, and for all communication."""
        if self.last is not None:
            self.wait_for(self.last)
        self.catch_up()
        self.backend.wait()
