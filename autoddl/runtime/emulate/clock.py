"""When an emulated device is free, and when what it has asked for has come.

A device computes in one queue and communicates in another, beside it. Computation is a sum of
seconds; collectives are real, and run in the order in which they are asked for:

    a collective starts   when the computation asked for before it has taken its time, and the
                          collective before it has ended
    computation waits     for a collective only where an operator needs what it brings

One thread does all of it: the program runs ahead of the time that it adds up, and sleeps where it
has to wait for a collective, until that starts. What Python takes is hidden in the sleep.

A collective counts for as long as it took, from the moment when it should have started: a sleep
that ends late does not lengthen it, nor what the emulation adds to it (`overhead`). Time so taken
off is made up for in the next sleep.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .overhead import Overhead


@dataclass
class Sent:
    """A collective that was asked for.

    asked:    when the computation before it ends, by `time.perf_counter`
    run:      gives back when it is over
    overhead: of its group
    end:      when it would have ended on a device; None before
    """

    asked: float
    run: Callable[[], None]
    overhead: Overhead
    end: float | None = None


@dataclass
class Clock:
    """When the emulated device is free again, in seconds of `time.perf_counter`.

    stalled_s:  seconds since the step began in which computation waited for collectives, and these
        for other ranks, without what the emulation itself adds
    last:       the collective asked for last
    is_running: a step has begun and not ended
    """

    free_at: float = 0.0
    stalled_s: float = 0.0
    last: Sent | None = None
    is_running: bool = False
    _queue: deque[Sent] = field(default_factory=deque)
    _line_free_at: float = 0.0

    def start(self) -> None:
        """A step begins now."""
        self.free_at = max(self.free_at, time.perf_counter())
        self.stalled_s = 0.0
        self.last = None
        self.is_running = True

    def compute(self, seconds: float) -> None:
        """The device computes for so long after what it does already."""
        self.free_at += seconds
        while self._queue and self._due <= time.perf_counter():
            self._carry()

    def send(self, run: Callable[[], None], overhead: Overhead) -> Sent:
        """A collective of what is computed so far; see `Sent`."""
        self.last = Sent(self.free_at, run, overhead)
        self._queue.append(self.last)
        return self.last

    def wait_for(self, sent: Sent) -> None:
        """Computation goes on when the collective has ended."""
        while sent.end is None:
            self._carry()
        self.stalled_s += max(0.0, sent.end - self.free_at)
        self.free_at = max(self.free_at, sent.end)

    def drain(self) -> None:
        """All collectives asked for so far run."""
        while self._queue:
            self._carry()

    def catch_up(self) -> None:
        """The collectives run, and the computation so far takes its time."""
        self.drain()
        time.sleep(max(0.0, self.free_at - time.perf_counter()))

    def finish(self) -> None:
        """Wait for all computation and all communication of the step."""
        if self.last is not None:
            self.wait_for(self.last)
        self.catch_up()
        self.is_running = False

    @property
    def _due(self) -> float:
        """When the next collective starts."""
        return max(self._queue[0].asked, self._line_free_at)

    def _carry(self) -> None:
        """Run the next collective."""
        due, sent = self._due, self._queue.popleft()
        pause_s = max(0.0, due - time.perf_counter())
        time.sleep(pause_s)
        began = time.perf_counter()
        sent.run()
        took = time.perf_counter() - began
        added = sent.overhead.slept_s if pause_s else sent.overhead.waited_s
        sent.end = self._line_free_at = due + max(0.0, took - added)
