"""How the numbers of a machine file were measured: ranges, confidence intervals, quality of fit.

`autoddl calibrate` writes this record. A price for a message or group outside `ranges` is an
extrapolation; `Calibration.covers` decides whether it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fields import Fields, check_known, checked_number

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


@dataclass(frozen=True, slots=True)
class Range:
    """Measured messages of one collective in groups of nodes x gpus devices, `groups` per host."""

    kind: str
    nodes: int
    gpus: int
    groups: int
    min_bytes: int
    max_bytes: int


@dataclass(frozen=True)
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

    date: str
    samples: int
    confidence: float
    intervals: Mapping[str, tuple[float, float]]
    r2: float
    errors: Mapping[str, float]
    warnings: tuple[str, ...]
    ranges: tuple[Range, ...]
    command: str = ""
    software: str = ""

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

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        told = {name: getattr(self, name) for name in ("command", "software")}
        return {
            "date": self.date,
            "samples": self.samples,
            "confidence": self.confidence,
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "r2": self.r2,
            "errors": dict(self.errors),
            "warnings": list(self.warnings),
            "ranges": [dataclasses.asdict(r) for r in self.ranges],
            **{name: text for name, text in told.items() if text},
        }

    @staticmethod
    def from_json(data: Any) -> Calibration:
        """Read what `to_json` wrote; a ValueError names the field that is wrong."""
        fields = Fields(data, "calibration", (f.name for f in dataclasses.fields(Calibration)))
        return Calibration(
            date=fields.text("date"),
            samples=fields.count("samples"),
            confidence=fields.number("confidence"),
            intervals=_intervals(fields.raw("intervals")),
            r2=_finite(fields.raw("r2"), "calibration.r2"),
            errors={
                kind: checked_number(error, f"calibration.errors.{kind}", zero=True)
                for kind, error in _object(fields.raw("errors"), "calibration.errors").items()
            },
            warnings=tuple(map(str, _list(fields.raw("warnings"), "calibration.warnings"))),
            ranges=tuple(
                _range(item, f"calibration.ranges[{index}]")
                for index, item in enumerate(_list(fields.raw("ranges"), "calibration.ranges"))
            ),
            **{name: fields.text(name) for name in ("command", "software") if name in data},
        )


def _intervals(data: Any) -> dict[str, tuple[float, float]]:
    where = "calibration.intervals"
    check_known(_object(data, where), PARAMETERS, where)
    found: dict[str, tuple[float, float]] = {}
    for name, pair in data.items():
        if len(_list(pair, f"{where}.{name}")) != 2:
            raise ValueError(f"field '{where}.{name}' must be a pair [low, high]")
        low, high = (checked_number(v, f"{where}.{name}", zero=True) for v in pair)
        if low > high:
            raise ValueError(f"field '{where}.{name}' must be a pair [low, high], got {pair}")
        found[name] = (low, high)
    return found


def _range(data: Any, where: str) -> Range:
    fields = Fields(data, where, (f.name for f in dataclasses.fields(Range)))
    names = ("nodes", "gpus", "groups", "min_bytes", "max_bytes")
    return Range(fields.text("kind"), *(fields.count(name) for name in names))


def _finite(value: Any, where: str) -> float:
    """A finite number of any sign (R2 of a fit worse than the mean is negative)."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return -checked_number(-value, where)
    return checked_number(value, where, zero=True)


def _object(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"field {where!r} must be an object")
    return data


def _list(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"field {where!r} must be a list")
    return data
