"""Decides when a point is measured well enough or left out, and estimates the remaining time.

All decisions depend only on the record and the limits, so that all ranks decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .record import Record
from .schedule import Point
from .statistics import is_known, least_samples

COPIES = 5  # tensors of a message's size that a collective keeps at once
LEAST_VISIT = 3  # samples of a visit: fewer would spend the time on switching between points
VISITS = 10  # a point's samples are spread over so many visits, so that a disturbance hits a tenth
# seconds, and seconds per byte, of a collective before anything is measured: a slow network. Only
# the estimate of the remaining time and the time limits use it
GUESS = (2e-3, 2e-8)


@dataclass(frozen=True)
class Limits:
    """When a point is done, and when it would take too long.

    repeats:    samples of every point; None: until half the interval of the median is within
                `precision` of it, or `most_repeats`
    budget_s:   no new visit after this many seconds
    call_s:     messages whose collective would take longer are left out
    """

    confidence: float = 0.95
    precision: float = 0.05
    repeats: int | None = None
    most_repeats: int = 50
    budget_s: float = 600.0
    call_s: float = 2.0

    def is_done(self, samples: Sequence[float]) -> bool:
        if self.repeats is not None:
            return len(samples) >= self.repeats
        return len(samples) >= self.most_repeats or is_known(
            samples, self.confidence, self.precision
        )

    def next_count(self, count: int) -> int:
        """The number of samples of the next visit: few, so that they are spread over time."""
        most = self.most_repeats if self.repeats is None else self.repeats
        return max(1, min(max(LEAST_VISIT, most // VISITS), most - count))


@dataclass(frozen=True)
class Progress:
    """Points done and in all, seconds spent and estimated to remain, and what is measured now."""

    done: int
    total: int
    spent_s: float
    left_s: float
    what: str

    @property
    def share(self) -> float:
        """The fraction of the whole time that has passed."""
        return self.spent_s / max(1e-9, self.spent_s + self.left_s)


def estimate(record: Record, point: Point) -> float:
    """Estimated seconds of one call, from measurements of the same collective and shape."""
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
        return f"would take {seconds:.2g} s a call (limit {limits.call_s:g} s)"
    return ""


def stop(record: Record, pending: Sequence[Point], limits: Limits) -> None:
    """End at the time limit: keep points with enough samples, and report what is missing."""
    for point in pending:
        if is_over(record, point):
            continue
        timing = record.timings.get(point)
        if timing is not None and len(timing.samples) >= LEAST_VISIT:
            timing.finish(limits.confidence)
        else:
            record.timings.pop(point, None)
            record.skipped[str(point)] = f"the time budget of {limits.budget_s:g} s was over"


def progress(
    record: Record, points: Sequence[Point], limits: Limits, now: Point, spent_s: float
) -> Progress:
    """The progress of the measurement, `spent_s` after its start."""
    pending = [p for p in points if not is_over(record, p)]
    left = 0.0
    for point in pending:
        timing = record.timings.get(point)
        count, calls = (len(timing.samples), timing.calls) if timing else (0, 4)
        least = limits.repeats or least_samples(limits.confidence)
        more = max(least - count, limits.next_count(count))
        seconds = estimate(record, point)
        if seconds <= limits.call_s:
            left += seconds * more * (calls + 1)
    left = min(left, max(0.0, limits.budget_s - spent_s))
    return Progress(len(points) - len(pending), len(points), spent_s, left, str(now))
