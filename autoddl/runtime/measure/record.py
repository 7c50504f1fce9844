"""The raw record of a calibration: every median, in a file beside the machine file.

The file is written atomically after each measurement, so that an interrupted calibration continues
where it stopped and a fit can be repeated without the machine. Samples are kept until a point is
done, then only their median and its confidence interval.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._files import write_atomically
from ...cluster.fields import Fields, checked_number, load_object
from ...cluster.operator_times import Point as OperatorPoint
from ...cluster.operator_times import points_of
from .schedule import KINDS, Point, Shape
from .statistics import median_interval

RECORD_VERSION = 1
SUFFIX = ".measurements.json"


def record_path(machine_file: str | Path) -> Path:
    """NAME.json -> NAME.measurements.json."""
    path = Path(machine_file)
    stem = path.name[: -len(".json")] if path.name.endswith(".json") else path.name
    return path.with_name(stem + SUFFIX)


@dataclass
class Timing:
    """Seconds of one point: its samples, or their summary once it is done.

    A sample is the mean of `calls` back-to-back calls on the slowest rank.
    """

    calls: int = 1
    samples: list[float] = field(default_factory=list)
    repeats: int = 0
    median_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.repeats > 0

    @property
    def median(self) -> float:
        return self.median_s if self.is_done else statistics.median(self.samples)

    def finish(self, confidence: float) -> None:
        """Keep only the median, its interval (of few samples, their range) and the count."""
        low, high = median_interval(self.samples, confidence) or (
            min(self.samples),
            max(self.samples),
        )
        self.repeats, self.median_s = len(self.samples), statistics.median(self.samples)
        self.low_s, self.high_s, self.samples = low, high, []

    def to_json(self) -> dict[str, Any]:
        if not self.is_done:
            return {"calls": self.calls, "samples": [_short(s) for s in self.samples]}
        return {
            "calls": self.calls,
            "repeats": self.repeats,
            "median_s": _short(self.median_s),
            "low_s": _short(self.low_s),
            "high_s": _short(self.high_s),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], where: str) -> Timing:
        fields = Fields(data, where, (*(f.name for f in dataclasses.fields(Timing)), *POINT_FIELDS))
        calls = fields.count("calls")
        if "samples" in data:
            samples = data["samples"]
            if not isinstance(samples, list) or not samples:
                raise ValueError(f"field '{where}.samples' must be a list of seconds")
            return Timing(calls, [checked_number(s, f"{where}.samples") for s in samples])
        seconds = (fields.number(name) for name in ("median_s", "low_s", "high_s"))
        return Timing(calls, [], fields.count("repeats"), *seconds)


POINT_FIELDS = ("kind", "nodes", "gpus", "groups", "bytes")


@dataclass
class DeviceTimes:
    """Times of one device while all others of its host do the same.

    matmul:       dtype -> points (FLOPs, median seconds of one matmul)
    copy:         points (bytes read and written, median seconds)
    launch_s:     seconds to start one operator
    memory_bytes: bytes that a process may use
    """

    kind: str
    matmul: dict[str, list[tuple[float, float]]]
    copy: list[tuple[float, float]]
    launch_s: float
    memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "matmul": {d: [[f, _short(s)] for f, s in points] for d, points in self.matmul.items()},
            "copy": [[n, _short(s)] for n, s in self.copy],
            "launch_s": _short(self.launch_s),
            "memory_bytes": self.memory_bytes,
        }

    @staticmethod
    def from_json(data: Any) -> DeviceTimes:
        fields = Fields(data, "device", (f.name for f in dataclasses.fields(DeviceTimes)))
        matmul = fields.raw("matmul")
        if not isinstance(matmul, Mapping) or "float32" not in matmul:
            raise ValueError("field 'device.matmul' must be an object with float32 in it")
        return DeviceTimes(
            kind=fields.text("kind", ("cpu", "cuda")),
            matmul={d: _points(p, f"device.matmul.{d}") for d, p in matmul.items()},
            copy=_points(fields.raw("copy"), "device.copy"),
            launch_s=fields.number("launch_s", zero=True),
            memory_bytes=fields.count("memory_bytes"),
        )


@dataclass(frozen=True)
class Machine:
    """Where a record was measured: the hosts in the order of their ranks, and their processor."""

    hosts: tuple[str, ...]
    processor: str
    cores: int

    def __str__(self) -> str:
        return f"{', '.join(self.hosts)} ({self.cores} x {self.processor})"


@dataclass
class Record:
    """All that a calibration has measured so far.

    date:       of the start, ISO 8601 in UTC
    confidence: of the medians' intervals
    skipped:    points left out, as text, with the reason
    operators:  `cost.operators.operator_key` -> points (work, forward and backward median seconds)
    command:    that measured, and with which `software`; "" in records that do not say it
    """

    name: str
    date: str
    machine: Machine
    nodes: int
    gpus_per_node: int
    confidence: float
    timings: dict[Point, Timing] = field(default_factory=dict)
    device: DeviceTimes | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    operators: dict[str, list[OperatorPoint]] = field(default_factory=dict)
    command: str = ""
    software: str = ""

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

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        return {
            "version": RECORD_VERSION,
            "name": self.name,
            "date": self.date,
            **{key: text for key in ("command", "software") if (text := getattr(self, key))},
            "machine": {
                "hosts": list(self.machine.hosts),
                "processor": self.machine.processor,
                "cores": self.machine.cores,
            },
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "confidence": self.confidence,
            "device": None if self.device is None else self.device.to_json(),
            "skipped": self.skipped,
            "operators": {
                key: [[done, _short(a), _short(b)] for done, a, b in points]
                for key, points in self.operators.items()
            },
            "collectives": [
                {
                    "kind": point.kind,
                    **dataclasses.asdict(point.shape),
                    "bytes": point.bytes,
                    **timing.to_json(),
                }
                for point, timing in self.timings.items()
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Record:
        """Read what `to_json` wrote; a ValueError names the field that is wrong."""
        version = data.get("version", "missing")
        if version != RECORD_VERSION:
            raise ValueError(
                f"field 'version' is {version!r}; this autoddl reads version {RECORD_VERSION}"
            )
        known = (*(f.name for f in dataclasses.fields(Record)), "version", "collectives")
        fields = Fields(data, "", known)
        machine = Fields(fields.raw("machine"), "machine", ("hosts", "processor", "cores"))
        hosts, timings = machine.raw("hosts"), fields.raw("collectives")
        skipped = data.get("skipped", {})
        if not isinstance(hosts, list) or not hosts:
            raise ValueError("field 'machine.hosts' must be a list of names")
        if not isinstance(timings, list):
            raise ValueError("field 'collectives' must be a list")
        if not isinstance(skipped, Mapping):
            raise ValueError("field 'skipped' must be an object")
        device = data.get("device")
        operators = data.get("operators", {})
        if not isinstance(operators, Mapping):
            raise ValueError("field 'operators' must be an object")
        return Record(
            name=fields.text("name"),
            date=fields.text("date"),
            machine=Machine(
                tuple(map(str, hosts)), machine.text("processor"), machine.count("cores")
            ),
            nodes=fields.count("nodes"),
            gpus_per_node=fields.count("gpus_per_node"),
            confidence=fields.number("confidence"),
            timings=dict(
                _timing(item, f"collectives[{index}]") for index, item in enumerate(timings)
            ),
            device=None if device is None else DeviceTimes.from_json(device),
            skipped=dict(skipped),
            operators={
                key: list(points_of(points, f"operators.{key}"))
                for key, points in operators.items()
            },
            **{name: fields.text(name) for name in ("command", "software") if name in data},
        )

    def dumps(self) -> str:
        """The file's text, one line per point; `loads` inverts it."""
        data = self.to_json()
        lines = [json.dumps(item) for item in data.pop("collectives")]
        head = json.dumps(data, indent=1)[: -len("\n}")]
        body = ",\n  ".join(lines)
        return f'{head},\n "collectives": [\n  {body}\n ]\n}}' if lines else json.dumps(
            {**data, "collectives": []}, indent=1
        )  # fmt: skip

    @staticmethod
    def loads(text: str) -> Record:
        """Read what `dumps` wrote; ValueError says what is wrong."""
        return Record.from_json(load_object(text))

    def save(self, path: str | Path) -> None:
        """Write JSON atomically: the file is replaced only when the new one is complete."""
        write_atomically(path, self.dumps())

    @staticmethod
    def load(path: str | Path) -> Record:
        """Read what `save` wrote. ValueError names the file, what is wrong and how to fix it."""
        try:
            return Record.loads(Path(path).read_text())
        except FileNotFoundError as error:
            raise ValueError(
                f"{path}: no such file; run autoddl calibrate without --refit"
            ) from error
        except ValueError as error:
            raise ValueError(
                f"{path}: not a whole calibration record: {error}. Remove it to measure anew"
            ) from error


def _timing(item: Any, where: str) -> tuple[Point, Timing]:
    timing = Timing.from_json(item, where)
    fields = Fields(item, where, item)
    shape = Shape(*(fields.count(name) for name in ("nodes", "gpus", "groups")))
    return Point(fields.text("kind", KINDS), shape, fields.count("bytes")), timing


def _points(data: Any, where: str) -> list[tuple[float, float]]:
    if not isinstance(data, list) or not data:
        raise ValueError(f"field {where!r} must be a list of pairs")
    for index, pair in enumerate(data):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError(f"field '{where}[{index}]' must be a pair of numbers")
    return [(checked_number(a, where), checked_number(b, where)) for a, b in data]


def _short(seconds: float) -> float:
    """Five significant digits."""
    return float(f"{seconds:.5g}")
