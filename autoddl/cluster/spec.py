"""The cluster: nodes, devices and links, with the source of every number.

The file format is the JSON of these classes' fields plus `version`. `sources` says where a number
comes from, by its dotted name: `{"device.memory_bytes": "data sheet, page 2"}`. Optional fields are
left out of the file where they have no value: a link's `call_s` and `transfer_s`, the device's
`efficiency`, `operators` and `shuffle_s_per_byte`, `lines` (of measured group shapes) and
`calibration` (how the numbers were measured). `autoddl calibrate` writes those.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from .._files import load_file, write_atomically
from ..sbp.collectives import COLLECTIVES, Collectives
from ..sbp.mesh import Mesh
from .fields import Fields, check_known, checked_number, load_object, type_name
from .link import GroupLine, Link
from .operator_times import OperatorTimes
from .provenance import Calibration

CLUSTER_VERSION = 1
MACHINES = Path(__file__).parent / "machines"  # the files that come with autoddl
FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
DeviceKind = Literal["cpu", "cuda"]
Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Device:
    """One device; on a CPU cluster, the share of the host that one process has.

    memory_bytes:  bytes that a process may use
    flops_per_s:   dtype -> floating-point operations per second that large matmuls reach
    memory_bandwidth_bytes_per_s: of the device's own memory, reads and writes together
    launch_s:      seconds to start one operator
    shuffle_s_per_byte: seconds per byte each time a collective copies or sums data on the device
    efficiency:    dtype -> points (FLOPs of a matmul, FLOP/s that it reaches), ascending; a dtype
                   without points reaches its `flops_per_s` at any size
    operators:     `cost.operators.operator_key` -> measured seconds; all other operators are priced
                   from the rates above
    """

    kind: DeviceKind
    memory_bytes: int
    flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    launch_s: float = 0.0
    shuffle_s_per_byte: float = 0.0
    efficiency: Mapping[str, Curve] = dataclasses.field(default_factory=dict)
    operators: Mapping[str, OperatorTimes] = dataclasses.field(default_factory=dict)

    def flops_for(self, dtype: str) -> float:
        """FLOP/s for `dtype`; a dtype without a number of its own runs as fast as float32."""
        return self.flops_per_s.get(dtype, self.flops_per_s["float32"])

    def curve_for(self, dtype: str) -> Curve:
        """The matmul efficiency points of `dtype`; () if unknown: `flops_for` holds at any size."""
        return self.efficiency.get(dtype if dtype in self.flops_per_s else "float32", ())


@dataclass(frozen=True)
class Cluster:
    """`nodes` hosts of `gpus_per_node` devices.

    intra: the link between the devices of a host; beta is per device.
    inter: the link between hosts; beta is per host, and the host's devices share it.
    lines: measured price lines of collectives, one per group shape that was measured
    collectives: the algorithms of the machine's communication library; not written to a file
    """

    name: str
    nodes: int
    gpus_per_node: int
    device: Device
    intra: Link
    inter: Link
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    calibration: Calibration | None = None
    lines: tuple[GroupLine, ...] = ()
    collectives: Collectives = COLLECTIVES

    def __post_init__(self) -> None:
        # The same checks serve a file, a direct call and `with_shape`.
        _parse(self.to_json())

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(self.nodes, self.gpus_per_node)

    @property
    def num_devices(self) -> int:
        return self.nodes * self.gpus_per_node

    def with_shape(self, nodes: int | None = None, gpus_per_node: int | None = None) -> Cluster:
        """The same machine in another size; omitted arguments stay. ValueError if below 1."""
        sizes = {"nodes": nodes, "gpus_per_node": gpus_per_node}
        changed = {k: v for k, v in sizes.items() if v is not None and v != getattr(self, k)}
        sources = {**self.sources, **dict.fromkeys(changed, "chosen by the caller (with_shape)")}
        return dataclasses.replace(self, **changed, sources=sources)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        device: dict[str, Any] = {
            "kind": self.device.kind,
            "memory_bytes": self.device.memory_bytes,
            "flops_per_s": dict(self.device.flops_per_s),
            "memory_bandwidth_bytes_per_s": self.device.memory_bandwidth_bytes_per_s,
            "launch_s": self.device.launch_s,
        }
        if self.device.shuffle_s_per_byte:
            device["shuffle_s_per_byte"] = self.device.shuffle_s_per_byte
        if self.device.efficiency:
            device["efficiency"] = {
                dtype: [list(point) for point in curve]
                for dtype, curve in self.device.efficiency.items()
            }
        if self.device.operators:
            device["operators"] = {
                key: times.to_json() for key, times in self.device.operators.items()
            }
        whole: dict[str, Any] = {
            "version": CLUSTER_VERSION,
            "name": self.name,
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "device": device,
            "intra": link_json(self.intra),
            "inter": link_json(self.inter),
            "sources": dict(self.sources),
        }
        if self.calibration is not None:
            whole["calibration"] = self.calibration.to_json()
        if self.lines:
            whole["lines"] = [line.to_json() for line in self.lines]
        return whole

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cluster:
        """Read what `to_json` wrote; a ValueError names the field that is wrong."""
        return Cluster(**_parse(data))

    def save(self, path: str | Path) -> None:
        """Write JSON atomically: the file is replaced only when the new one is complete."""
        write_atomically(path, json.dumps(self.to_json(), indent=2))

    @staticmethod
    def load(path: str | Path) -> Cluster:
        """Read what `save` wrote, or the machine of this name of those that come with autoddl.

        ValueError names the file and the field that is wrong.
        """
        shipped = MACHINES / f"{path}.json"
        if not Path(path).exists() and shipped.parent == MACHINES:
            if not shipped.is_file() and not Path(path).suffix:
                known = ", ".join(sorted(file.stem for file in MACHINES.glob("*.json")))
                raise ValueError(f"{path}: no such file, and no machine of autoddl's: {known}")
            path = shipped if shipped.is_file() else path
        return load_file(path, "machine file", lambda text: Cluster.from_json(load_object(text)))

    def __str__(self) -> str:
        return f"{self.name} {self.nodes}x{self.gpus_per_node}"


def _parse(data: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments, checked."""
    version = data.get("version", "missing")
    if version != CLUSTER_VERSION:
        raise ValueError(
            f"field 'version' is {version!r}; this autoddl reads version {CLUSTER_VERSION}"
        )
    fields = Fields(data, "", ("version", *(f.name for f in dataclasses.fields(Cluster))))
    return {
        "name": fields.text("name"),
        "nodes": fields.count("nodes"),
        "gpus_per_node": fields.count("gpus_per_node"),
        "device": _device(fields.raw("device")),
        "intra": _link(fields.raw("intra"), "intra"),
        "inter": _link(fields.raw("inter"), "inter"),
        "sources": _sources(data.get("sources", {})),
        "calibration": _calibration(data.get("calibration")),
        "lines": _lines(data.get("lines", [])),
    }


def _device(data: Any) -> Device:
    fields = Fields(data, "device", (f.name for f in dataclasses.fields(Device)))
    rates = Fields(fields.raw("flops_per_s"), "device.flops_per_s", FLOAT_DTYPES)
    rates.number("float32")
    return Device(
        kind=cast(DeviceKind, fields.text("kind", ("cpu", "cuda"))),
        memory_bytes=fields.count("memory_bytes"),
        flops_per_s={
            dtype: checked_number(rate, rates.path(dtype))
            for dtype, rate in fields.raw("flops_per_s").items()
        },
        memory_bandwidth_bytes_per_s=fields.number("memory_bandwidth_bytes_per_s"),
        launch_s=fields.number("launch_s", zero=True, default=0.0),
        shuffle_s_per_byte=fields.number("shuffle_s_per_byte", zero=True, default=0.0),
        efficiency=_efficiency(data.get("efficiency", {})),
        operators=_operators(data.get("operators", {})),
    )


def _efficiency(data: Any) -> dict[str, Curve]:
    """dtype -> its points. A matmul with more FLOPs must not take less time."""
    where = "device.efficiency"
    Fields(data, where, FLOAT_DTYPES)
    curves: dict[str, Curve] = {}
    for dtype, points in data.items():
        path = f"{where}.{dtype}"
        if not isinstance(points, list | tuple) or not points:
            raise ValueError(f"field {path!r} must be a list of [FLOPs, FLOP/s], one at least")
        for index, point in enumerate(points):
            if not isinstance(point, list | tuple) or len(point) != 2:
                raise ValueError(f"field '{path}[{index}]' must be a pair [FLOPs, FLOP/s]")
        curve = tuple(
            (checked_number(a, f"{path}[{i}][0]"), checked_number(b, f"{path}[{i}][1]"))
            for i, (a, b) in enumerate(points)
        )
        for index, ((a, rate_a), (b, rate_b)) in enumerate(itertools.pairwise(curve), start=1):
            if b <= a or b / rate_b < a / rate_a * (1 - 1e-4):
                raise ValueError(
                    f"field '{path}[{index}]': FLOPs must ascend, and more of them must not take "
                    f"less time; got {b:g} at {rate_b:g}/s after {a:g} at {rate_a:g}/s"
                )
        curves[dtype] = curve
    return curves


def _operators(data: Any) -> dict[str, OperatorTimes]:
    where = "device.operators"
    if not isinstance(data, Mapping):
        raise ValueError(f"field {where!r} must be an object, got {type_name(data)}")
    return {key: OperatorTimes.from_json(p, f"{where}.{key}") for key, p in data.items()}


def _link(data: Any, where: str) -> Link:
    fields = Fields(data, where, (f.name for f in dataclasses.fields(Link)))
    return Link(
        fields.number("alpha_s", zero=True),
        fields.number("beta_s_per_byte"),
        fields.number("call_s", zero=True, default=0.0),
        fields.number("transfer_s", zero=True) if "transfer_s" in data else None,
    )


def link_json(link: Link) -> dict[str, float]:
    """The link's fields as written to a file, without optional fields that have no value."""
    optional = {"call_s": 0.0, "transfer_s": None}
    numbers = dataclasses.asdict(link)
    return {k: v for k, v in numbers.items() if k not in optional or v != optional[k]}


def _calibration(data: Any) -> Calibration | None:
    return None if data is None else Calibration.from_json(data)


def _lines(data: Any) -> tuple[GroupLine, ...]:
    if not isinstance(data, list):
        raise ValueError("field 'lines' must be a list")
    lines = tuple(GroupLine.from_json(item, f"lines[{i}]") for i, item in enumerate(data))
    for index, line in enumerate(lines):
        if any(line.shape == other.shape for other in lines[:index]):
            raise ValueError(
                f"field 'lines[{index}]': {line.kind} in groups of {line.nodes} x {line.gpus}, "
                f"{line.groups} at once, has a line already"
            )
    return lines


def _sources(data: Any) -> dict[str, str]:
    known = ("nodes", "gpus_per_node", *_dotted("device", Device), *_dotted("intra", Link))
    known += (*_dotted("inter", Link), *(f"device.flops_per_s.{d}" for d in FLOAT_DTYPES))
    known += tuple(f"device.efficiency.{d}" for d in FLOAT_DTYPES)
    if not isinstance(data, Mapping):
        raise ValueError("field 'sources' must be an object of field name -> text")
    check_known(data, known, "sources")
    for name, text in data.items():
        if not isinstance(text, str):
            raise ValueError(f"field 'sources.{name}' must be a text")
    return dict(data)


def _dotted(prefix: str, kind: type) -> tuple[str, ...]:
    return tuple(f"{prefix}.{field.name}" for field in dataclasses.fields(kind))
