"""The raw record of a calibration: every median, in a file beside the machine file.

The file is written atomically after each measurement, so that an interrupted calibration continues
where it stopped and a fit can be repeated without the machine. Samples are kept until a point is
done, then only their median and its confidence interval.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, PlainSerializer

from ..._files import (
    FIELDS,
    OMIT,
    Count,
    FileKind,
    Name,
    NotNegative,
    OneOf,
    Positive,
    Stored,
    Versioned,
    write_atomically,
)
from ...cluster.spec import FloatDtype, with_float32
from .schedule import KINDS, Point, Shape
from .statistics import median_interval

SUFFIX = ".measurements.json"


def record_path(machine_file: str | Path) -> Path:
    """NAME.json -> NAME.measurements.json."""
    path = Path(machine_file)
    stem = path.name[: -len(".json")] if path.name.endswith(".json") else path.name
    return path.with_name(stem + SUFFIX)


def _short(seconds: float) -> float:
    """Five significant digits."""
    return float(f"{seconds:.5g}")


Seconds = Annotated[Positive, PlainSerializer(_short)]
SecondsOrZero = Annotated[NotNegative, PlainSerializer(_short)]
Points = Annotated[list[tuple[Positive, Seconds]], Field(min_length=1)]
OperatorPoint = tuple[Positive, Seconds, SecondsOrZero]


@dataclass
class Timing:
    """Seconds of one point: its samples, or their summary once it is done.

    A sample is the mean of `calls` back-to-back calls on the slowest rank.
    """

    calls: Count = 1
    samples: Annotated[list[Seconds], OMIT] = field(default_factory=list)
    repeats: Annotated[Count, OMIT] = 0
    median_s: Annotated[Seconds, OMIT] = 0.0
    low_s: Annotated[Seconds, OMIT] = 0.0
    high_s: Annotated[Seconds, OMIT] = 0.0

    @property
    def is_done(self) -> bool:
        return self.repeats > 0

    @property
    def median(self) -> float:
        return self.median_s if self.is_done else statistics.median(self.samples)

    def finish(self, confidence: float) -> None:
        """Keep only the median, its interval (of few samples, their range) and the count."""
        self.low_s, self.high_s = self._interval(confidence)
        self.repeats, self.median_s = len(self.samples), statistics.median(self.samples)
        self.samples = []

    def half_interval(self, confidence: float) -> float:
        """Half the interval by the median; of few samples half their range."""
        low, high = self._interval(confidence)
        return (high - low) / 2 / self.median

    def _interval(self, confidence: float) -> tuple[float, float]:
        if self.is_done:
            return self.low_s, self.high_s
        found = median_interval(self.samples, confidence)
        return found or (min(self.samples), max(self.samples))


@dataclass
class _Measured:
    kind: Annotated[str, OneOf(KINDS)]
    nodes: Count
    gpus: Count
    groups: Count
    bytes: Count


@dataclass
class _Line(Timing, _Measured):
    """A point and its timing, as a file has them."""

    __pydantic_config__ = FIELDS

    def __post_init__(self) -> None:
        if not self.samples and not (self.repeats and self.median_s and self.low_s and self.high_s):
            raise ValueError("needs 'samples', or 'repeats', 'median_s', 'low_s' and 'high_s'")


def _timings(lines: list[_Line]) -> dict[Point, Timing]:
    return {
        Point(line.kind, Shape(line.nodes, line.gpus, line.groups), line.bytes): Timing(
            line.calls, line.samples, line.repeats, line.median_s, line.low_s, line.high_s
        )
        for line in lines
    }


def _lines(timings: dict[Point, Timing]) -> list[_Line]:
    return [
        _Line(p.kind, p.shape.nodes, p.shape.gpus, p.shape.groups, p.bytes, **vars(timing))
        for p, timing in timings.items()
    ]


@dataclass
class DeviceTimes:
    """Times of one device while all others of its host do the same.

    matmul:       dtype -> points (FLOPs, median seconds of one matmul)
    copy:         points (bytes read and written, median seconds)
    launch_s:     seconds to start one operator
    memory_bytes: bytes that a process may use
    """

    kind: Annotated[str, OneOf(("cpu", "cuda"))]
    matmul: Annotated[dict[FloatDtype, Points], AfterValidator(with_float32)]
    copy: Points
    launch_s: SecondsOrZero
    memory_bytes: Count

    __pydantic_config__ = FIELDS


LEAST_SPEED = 1e-3  # what stands still while the other runs has no finite slowdown


@dataclass(frozen=True)
class BesideTimes:
    """Of computation and collectives: alone, and until each ended that were asked for together."""

    computation_s: Seconds
    collective_s: Seconds
    computation_beside_s: Seconds
    collective_beside_s: Seconds

    __pydantic_config__ = FIELDS

    @property
    def slowdowns(self) -> tuple[float, float]:
        """By how much of its seconds computation takes longer beside the other, and a collective.

        See `measure.beside`.
        """
        pairs = (
            (self.computation_beside_s, self.computation_s),
            (self.collective_beside_s, self.collective_s),
        )
        first_s = min(together for together, _ in pairs)
        speeds = ((alone - (together - first_s)) / first_s for together, alone in pairs)
        computation, collective = (1 / min(1.0, max(LEAST_SPEED, x)) - 1 for x in speeds)
        return computation, collective


@dataclass(frozen=True)
class Machine:
    """Where a record was measured: the hosts in the order of their ranks, and their processor."""

    hosts: Annotated[tuple[Name, ...], Field(min_length=1)]
    processor: Name
    cores: Count

    __pydantic_config__ = FIELDS

    def __str__(self) -> str:
        return f"{', '.join(self.hosts)} ({self.cores} x {self.processor})"


@dataclass
class Record:
    """All that a calibration has measured so far.

    date:       of the start, ISO 8601 in UTC
    confidence: of the medians' intervals
    skipped:    points left out, as text, with the reason
    beside:     link -> computation beside collectives on it
    operators:  `cost.operators.operator_key` -> points (work, forward and backward median seconds)
    command:    that measured, and with which `software`; "" in records that do not say it
    """

    VERSION: ClassVar[int] = 1

    name: Name
    date: Name
    machine: Machine
    nodes: Count
    gpus_per_node: Count
    confidence: Positive
    timings: Annotated[
        dict[Point, Timing], Stored(list[_Line], _timings, _lines), Field(alias="collectives")
    ] = field(default_factory=dict)
    device: DeviceTimes | None = None
    beside: Annotated[dict[Annotated[str, OneOf(("intra", "inter"))], BesideTimes], OMIT] = field(
        default_factory=dict
    )
    skipped: dict[str, str] = field(default_factory=dict)
    operators: dict[str, Annotated[list[OperatorPoint], Field(min_length=1)]] = field(
        default_factory=dict
    )
    command: Annotated[str, OMIT] = ""
    software: Annotated[str, OMIT] = ""

    __pydantic_config__ = FIELDS

    def done(self) -> dict[Point, Timing]:
        """The finished points."""
        return {point: timing for point, timing in self.timings.items() if timing.is_done}

    def check_same(self, machine: Machine, nodes: int, gpus_per_node: int) -> None:
        """ValueError unless the record is of this machine in this shape."""
        mend = "give another --output, or remove the record to measure anew"
        if (self.nodes, self.gpus_per_node) != (nodes, gpus_per_node):
            raise ValueError(
                f"the record is of {self.nodes} x {self.gpus_per_node} devices, these are "
                f"{nodes} x {gpus_per_node}; {mend}"
            )
        if self.machine != machine:
            raise ValueError(f"the record is of {self.machine}, this is {machine}; {mend}")

    def dumps(self) -> str:
        """The file's text, one line per point; `loads` inverts it."""
        data = RECORD_FILE.to_json(self)
        lines = ",".join(f"\n  {json.dumps(line)}" for line in data.pop("collectives"))
        end = "\n ]\n}" if lines else "]\n}"
        return json.dumps(data, indent=1)[: -len("\n}")] + f',\n "collectives": [{lines}{end}'

    @staticmethod
    def loads(text: str) -> Record:
        """Read what `dumps` wrote; ValueError says what is wrong."""
        return RECORD_FILE.loads(text)

    def save(self, path: str | Path) -> None:
        """Write JSON atomically: the file is replaced only when the new one is complete."""
        write_atomically(path, self.dumps())

    @staticmethod
    def load(path: str | Path) -> Record:
        """Read what `save` wrote. ValueError names the file, what is wrong and how to fix it."""
        if not Path(path).exists():
            raise ValueError(f"{path}: no such file; run autoddl calibrate without --refit")
        return RECORD_FILE.load(path)


RECORD_FILE: FileKind[Record] = FileKind(
    "calibration record", Annotated[Record, Versioned()], "remove it to measure anew"
)
