"""Decides which point is visited next, when one is measured well enough, and when time is over.

Always the point on which the least time was spent is next, the smaller message first: so each has
a first median soon, from small messages to large ones, and what is left of the time goes to small
messages, of which many samples cost little. A visit that would not end in time is not begun, but of
those that a fit cannot do without. All decisions depend only on the record, the limits and rank 0's
clock, so that all ranks decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...plans.format import format_bytes
from .record import Record, Timing
from .schedule import Point
from .statistics import half_interval
from .stopwatch import WARM_UP_CALLS

COPIES = 5  # tensors of a message's size that a collective keeps at once
LEAST_VISIT = 3  # samples of a visit: fewer would spend the time on switching between points
VISITS = 10  # a point's samples are spread over so many visits, so that a disturbance hits a tenth
LEAST_SIZES = 2  # messages of each collective that a fit cannot do without
# A training step issues its collectives one after the other and does not wait for each: one call
# that all ranks start and end together takes several times as long where processes share cores.
SAMPLE_SECONDS = 0.1
MOST_CALLS = 16  # of a small message, whose calls together do not reach SAMPLE_SECONDS
# seconds, and seconds per byte, of a collective before anything is measured: a slow network. Only
# the estimate of the remaining time and the time limits use it
GUESS = (2e-3, 2e-8)
BUDGET_S = 180.0


@dataclass(frozen=True)
class Limits:
    """When a point is done, and when it would take too long.

    repeats:    samples of every point; None: until half the interval of the median is within
                `precision` of it, or `most_repeats`
    budget_s:   to measure the device and the collectives, and again for a model's operators
    call_s:     messages whose collective would take longer are left out
    """

    confidence: float = 0.95
    precision: float = 0.05
    repeats: int | None = None
    most_repeats: int = 50
    budget_s: float = BUDGET_S
    call_s: float = 2.0

    @property
    def time_is_over(self) -> str:
        """The reason for which the rest is left out."""
        return f"the time of {self.budget_s:g} s was over (--budget)"

    @property
    def most(self) -> int:
        """Samples of a point."""
        return self.most_repeats if self.repeats is None else self.repeats

    def is_done(self, samples: Sequence[float]) -> bool:
        if len(samples) >= self.most:
            return True
        half = half_interval(samples, self.confidence)
        return self.repeats is None and half is not None and half <= self.precision

    def next_count(self, count: int) -> int:
        """The number of samples of the next visit: few, so that they are spread over time."""
        return max(1, min(max(LEAST_VISIT, self.most // VISITS), self.most - count))

    def more_samples(self, samples: Sequence[float]) -> int:
        """Estimated samples until the point is done: intervals shrink with the root of them."""
        count, half = len(samples), half_interval(samples, self.confidence)
        if self.repeats is not None or half is None:
            return self.most - count
        wanted = count * (half / self.precision) ** 2
        return min(self.most, max(math.ceil(wanted), count + LEAST_VISIT)) - count


@dataclass(frozen=True)
class Progress:
    """How far a calibration is.

    done:    of `total` `units`, points or operators; 0 of 0 where they are not counted
    spent_s: since the start; left_s: estimated to remain
    what:    is measured now
    known:   once all points have one, half the interval by the median, of the one in the middle
    """

    units: str
    done: int
    total: int
    spent_s: float
    left_s: float
    what: str
    known: float | None = None

    @property
    def share(self) -> float:
        """The fraction of the whole time that has passed."""
        return self.spent_s / max(1e-9, self.spent_s + self.left_s)


def estimate(record: Record, point: Point) -> float:
    """Estimated seconds of one call, from measurements of the same collective and shape."""
    if point in record.timings:
        return record.timings[point].median
    known = [
        (p.bytes, t.median)
        for p, t in record.timings.items()
        if (p.kind, p.shape) == (point.kind, point.shape)
    ]
    if not known:
        return GUESS[0] + GUESS[1] * point.bytes
    size, seconds = min(known, key=lambda k: abs(math.log(k[0] / point.bytes)))
    smaller = [s for n, s in known if n < size]
    # what does not grow with the message is what a smaller one took, at most
    fixed = min([seconds, *smaller]) if smaller else 0.0
    return fixed + (seconds - fixed) * point.bytes / size


def is_over(record: Record, point: Point) -> bool:
    """True if the point is done or left out."""
    timing = record.timings.get(point)
    return str(point) in record.skipped or (timing is not None and timing.is_done)


def why_not(record: Record, point: Point, limits: Limits, memory_bytes: int) -> str:
    """Why the point is left out; '' if it is not."""
    if point.bytes * COPIES > memory_bytes:
        return f"needs {COPIES} times its bytes of {memory_bytes} bytes of memory"
    seconds = estimate(record, point)
    known = any((p.kind, p.shape) == (point.kind, point.shape) for p in record.timings)
    if known and seconds > limits.call_s:
        return f"a call would take more than {limits.call_s:g} s (--max-call)"
    return ""


def known_to(record: Record, share: float = 0.5) -> float:
    """Half the interval by the median, of all points but those `1 - share` that are known worst.

    Of few samples the interval is their range.
    """
    halves = sorted(t.half_interval(record.confidence) for t in record.timings.values())
    return halves[math.ceil(share * len(halves)) - 1]


def calls_of(seconds: float) -> int:
    """Calls of a sample, of which each takes so long."""
    return max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / max(seconds, 1e-6))))


def visit_seconds(record: Record, point: Point, limits: Limits) -> float:
    """Estimated seconds of the point's next visit."""
    seconds = estimate(record, point)
    timing = record.timings.get(point) or Timing(calls_of(seconds))
    count = limits.next_count(len(timing.samples))
    return seconds * (WARM_UP_CALLS + count * timing.calls)


def next_point(
    record: Record, points: Sequence[Point], limits: Limits, left_s: float
) -> Point | None:
    """The point to visit; None if all are over, or no visit would end in time."""
    pending = (p for p in points if not is_over(record, p))
    for point in sorted(pending, key=lambda p: _spent_seconds(record, p)):
        in_time = visit_seconds(record, point, limits) <= left_s
        if in_time or _is_needed(record, point):
            return point
    return None


def _spent_seconds(record: Record, point: Point) -> float:
    timing = record.timings.get(point)
    return sum(timing.samples) * timing.calls if timing else 0.0


def _is_needed(record: Record, point: Point) -> bool:
    """True for the first messages of a collective in groups of a shape."""
    if point in record.timings:
        return False
    like = [p for p in record.timings if (p.kind, p.shape) == (point.kind, point.shape)]
    return len(like) < LEAST_SIZES


def stop(record: Record, points: Sequence[Point], limits: Limits, memory_bytes: int) -> None:
    """End at the time limit: keep points with enough samples, and report what is missing."""
    for point in points:
        if is_over(record, point):
            continue
        timing = record.timings.get(point)
        if timing is not None and len(timing.samples) >= LEAST_VISIT:
            timing.finish(limits.confidence)
            continue
        reason = why_not(record, point, limits, memory_bytes)
        record.timings.pop(point, None)
        record.skipped[str(point)] = reason or limits.time_is_over


def progress(
    record: Record, points: Sequence[Point], limits: Limits, now: Point, spent_s: float
) -> Progress:
    """The progress of the measurement, `spent_s` after its start."""
    left_s = 0.0
    for point in points:
        timing = record.timings.get(point)
        if is_over(record, point):
            continue
        seconds = estimate(record, point)
        more = limits.more_samples(timing.samples if timing else ())
        if seconds <= limits.call_s:
            left_s += seconds * more * ((timing.calls if timing else calls_of(seconds)) + 1)
    done = sum(p in record.timings or is_over(record, p) for p in points)
    known = known_to(record) if done == len(points) else None
    left_s = min(left_s, max(0.0, limits.budget_s - spent_s))
    what = f"{now.kind} {now.shape.nodes}x{now.shape.gpus} {format_bytes(now.bytes)}"
    return Progress("points", done, len(points), spent_s, left_s, what, known)
