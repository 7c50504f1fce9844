"""Runs a calibration on all ranks: every point of the schedule, until its median is known.

All ranks have the same record and derive the same decisions from it. The points are visited in
turns, several times each, so that a disturbance does not affect one of them alone; a point is done
when its median is known well enough, or has its full number of samples. Rank 0 saves the record
after every visit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...comm.groups import Groups
from ...measure.measured import Limits, Progress, estimate, is_over, progress, stop, why_not
from ...measure.record import Record, Timing
from ...measure.schedule import Point
from .timing import Stopwatch, collective_call

# A training step issues its collectives one after the other and does not wait for each: one call
# that all ranks start and end together takes several times as long where processes share cores.
SAMPLE_SECONDS = 0.1
MOST_CALLS = 16  # of a small message, whose calls together do not reach SAMPLE_SECONDS


def measure(
    record: Record,
    points: Sequence[Point],
    groups: Groups,
    watch: Stopwatch,
    limits: Limits,
    memory_bytes: int,
    save: Callable[[], None],
    show: Callable[[Progress], None],
    expect: Callable[[str, float], None],
) -> None:
    """Fill `record`. `expect(what, seconds)` is called before each visit with an estimate."""
    started = time.monotonic()
    while True:
        pending = [p for p in points if not is_over(record, p)]
        if not pending:
            return
        for point in pending:
            reason = why_not(record, point, limits, memory_bytes)
            if watch.agreed(time.monotonic() - started) > limits.budget_s:
                stop(record, pending, limits)
                save()
                return
            if reason:
                record.skipped[str(point)] = reason
            else:
                spent_s = time.monotonic() - started
                show(progress(record, points, limits, point, spent_s))
                expect(str(point), 10 * estimate(record, point) * MOST_CALLS)
                _visit(record, point, groups, watch, limits)
            save()


def _visit(record: Record, point: Point, groups: Groups, watch: Stopwatch, limits: Limits) -> None:
    call = collective_call(point, groups)
    once = watch.warm_up(call)
    timing = record.timings.get(point)
    if timing is None:
        calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / max(once, 1e-6))))
        timing = record.timings[point] = Timing(calls)
    count = limits.next_count(len(timing.samples))
    timing.samples += watch.seconds(call, timing.calls, count)
    if limits.is_done(timing.samples):
        timing.finish(limits.confidence)
