"""How the numbers of a machine file were measured: ranges, confidence intervals, quality of fit.

`autoddl calibrate` writes this record. A price for a message or group outside `ranges` is an
extrapolation; `Calibration.covers` decides whether it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from .._files import OMIT, Count, Name, NotNegative, OneOf, Positive, checked

# A price counts as extrapolated for a message this many times larger than the largest measured one,
# or a group this many times wider than the widest. One step of the measured message sizes is a
# factor of 4, and the next larger group has at least twice the devices, so each is one step beyond
# the measurements. Smaller messages are no extrapolation: like the smallest measured one they are
# dominated by latency.
FAR_BYTES = 4.0
FAR_GROUP = 2.0

NUMBERS = ("call_s", "alpha_s", "beta_s_per_byte", "transfer_s")
PARAMETERS = (
    *(f"{link}.{name}" for link in ("intra", "inter") for name in NUMBERS),
    "device.shuffle_s_per_byte",
)


def _in_order(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise ValueError(f"must be a pair [low, high], got {list(pair)}")
    return pair


Interval = Annotated[tuple[NotNegative, NotNegative], AfterValidator(_in_order)]


@checked
class Range:
    """Measured messages of one collective in groups of nodes x gpus devices, `groups` per host."""

    kind: Name
    nodes: Count
    gpus: Count
    groups: Count
    min_bytes: Count
    max_bytes: Count


@checked
class Calibration:
    """The record of a calibration in the machine file.

    date:       of the measurement, ISO 8601 in UTC
    samples:    how many collectives were timed
    confidence: level of the intervals
    intervals:  dotted name of a fitted number -> (low, high)
    r2:         share of the variance of the logarithm of the seconds that the fit explains
    errors:     collective -> median of |predicted / measured - 1|
    warnings:   reasons to distrust the fit, if any
    ranges:     the messages and groups that were measured
    command:    that measured, and with which `software`; "" in files that do not say it
    """

    date: Name
    samples: Count
    confidence: Positive
    intervals: Mapping[Annotated[str, OneOf(PARAMETERS)], Interval]
    r2: Annotated[float, Field(strict=True)]
    errors: Mapping[str, NotNegative]
    warnings: tuple[str, ...]
    ranges: tuple[Range, ...]
    command: Annotated[str, OMIT] = ""
    software: Annotated[str, OMIT] = ""

    def covers(self, kind: str, nodes: int, gpus: int, groups: float, local_bytes: float) -> bool:
        """False if nothing near the collective's shape and size was measured."""
        near = [
            r
            for r in self.ranges
            if r.kind == kind
            and (r.nodes > 1) == (nodes > 1)
            and nodes <= FAR_GROUP * r.nodes
            and gpus <= FAR_GROUP * r.gpus
            and (nodes == 1 or groups <= FAR_GROUP * r.groups)
        ]
        return any(local_bytes <= r.max_bytes * FAR_BYTES for r in near)
