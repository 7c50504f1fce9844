"""The cluster: nodes, devices and links, with the source of every number.

A machine file is the JSON of these classes' fields plus `version`: docs/schemas has its schema.
`sources` says where a number comes from, by its dotted name: `{"device.memory_bytes": "data sheet,
page 2"}`. Fields with `OMIT` are left out where they have no value; `autoddl calibrate` writes
them.

Where hosts are not alike, `groups` has those of each kind, in the order of their ranks, and the
machine's own device and links are those of a group that names none. A collective that leaves a
group, or runs in several at once, goes at the pace of the slowest link.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, InstanceOf
from pydantic.json_schema import SkipJsonSchema

from .._files import (
    OMIT,
    Count,
    FileKind,
    Name,
    NotNegative,
    OneOf,
    Positive,
    Stored,
    Versioned,
    check_path,
    checked,
    expect,
)
from ..sbp.collectives import COLLECTIVES, Collectives
from ..sbp.mesh import Mesh, SubMesh
from .link import Calibration, GroupLine, Link

MACHINES = Path(__file__).parent / "machines"  # the files that come with autoddl
Value = TypeVar("Value")
FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
FloatDtype = Annotated[str, OneOf(FLOAT_DTYPES)]
Curve = tuple[tuple[Positive, Positive], ...]
MOST_NODES, MOST_GPUS = 65_536, 1_024  # more is a slip: no machine has them, no plan is found


def _ascending(curve: Curve) -> Curve:
    """ValueError where a matmul with more FLOPs takes less time."""
    for (a, rate_a), (b, rate_b) in itertools.pairwise(curve):
        if b <= a or b / rate_b < a / rate_a * (1 - 1e-4):
            raise ValueError(
                f"FLOPs must ascend, and more of them must not take less time; got {b:g} at "
                f"{rate_b:g}/s after {a:g} at {rate_a:g}/s"
            )
    return curve


def with_float32(by_dtype: Mapping[str, Value]) -> Mapping[str, Value]:
    """ValueError if that is missing, which other dtypes fall back to."""
    if "float32" not in by_dtype:
        raise ValueError("'float32' is missing")
    return by_dtype


# (work, forward seconds, backward seconds)
TimedPoint = tuple[Positive, Positive, NotNegative]


@dataclass(frozen=True)
class OperatorTimes:
    """Measured seconds of an operator on a device, forward and backward, at several batch sizes.

    A single arithmetic rate and a single memory bandwidth describe matrix products on a large
    device well. Other operators may be far slower: a convolution or a broadcast on a CPU may run at
    a tenth of those rates. `autoddl calibrate --model` times those of a model; `cost.operators`
    decides which measurement belongs to an operator.

    points: in ascending order of work (`cost.operators.work`); seconds never fall
    """

    points: tuple[TimedPoint, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("an operator needs one measured point at least")
        for (a, *before), (b, *after) in itertools.pairwise(self.points):
            if b <= a or any(y < x for x, y in zip(before, after, strict=True)):
                raise ValueError(
                    f"work must ascend and seconds must not fall, got {[b, *after]} after "
                    f"{[a, *before]}"
                )


# In a file as the list of its points
StoredTimes = Annotated[
    OperatorTimes, Stored(tuple[TimedPoint, ...], OperatorTimes, attrgetter("points"))
]


@checked
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

    kind: Literal["cpu", "cuda"]
    memory_bytes: Count
    flops_per_s: Annotated[Mapping[FloatDtype, Positive], AfterValidator(with_float32)]
    memory_bandwidth_bytes_per_s: Positive
    launch_s: NotNegative = 0.0
    shuffle_s_per_byte: Annotated[NotNegative, OMIT] = 0.0
    efficiency: Annotated[
        Mapping[FloatDtype, Annotated[Curve, Field(min_length=1), AfterValidator(_ascending)]], OMIT
    ] = dataclasses.field(default_factory=dict)
    operators: Annotated[Mapping[str, StoredTimes], OMIT] = dataclasses.field(default_factory=dict)

    def flops_for(self, dtype: str) -> float:
        """FLOP/s for `dtype`; a dtype without a number of its own runs as fast as float32."""
        return self.flops_per_s.get(dtype, self.flops_per_s["float32"])

    def curve_for(self, dtype: str) -> Curve:
        """The matmul efficiency points of `dtype`; () if unknown: `flops_for` holds at any size."""
        return self.efficiency.get(dtype if dtype in self.flops_per_s else "float32", ())


def _numbers() -> tuple[str, ...]:
    """The dotted names of what may have a source."""
    parts = (("device", Device), ("intra", Link), ("inter", Link))
    named = (f"{part}.{f.name}" for part, kind in parts for f in dataclasses.fields(kind))
    by_dtype = (f"device.{n}.{d}" for n in ("flops_per_s", "efficiency") for d in FLOAT_DTYPES)
    return ("nodes", "gpus_per_node", *named, *by_dtype)


@checked
class HostGroup:
    """`nodes` hosts of one kind, beside one another.

    device, intra, inter: as in `Cluster`; None for the machine's own
    """

    name: Name
    nodes: Annotated[Count, Field(le=MOST_NODES)]
    device: Annotated[Device | None, OMIT] = None
    intra: Annotated[Link | None, OMIT] = None
    inter: Annotated[Link | None, OMIT] = None
    sources: Annotated[Mapping[Annotated[str, OneOf(_numbers())], str], OMIT] = dataclasses.field(
        default_factory=dict
    )


def _several(groups: tuple[HostGroup, ...]) -> tuple[HostGroup, ...]:
    names = [group.name for group in groups]
    if len(groups) == 1:
        raise ValueError("one group says no more than the machine itself; leave it out")
    if len(set(names)) < len(names):
        raise ValueError(f"two groups have one name: {', '.join(names)}")
    return groups


@dataclass(frozen=True)
class Kind:
    """Devices that work alike: a device, and what it gets of what the first mesh axis splits.

    part: of the largest part, 1 where shares are equal
    """

    device: Device
    part: float = 1.0


def _one_each(lines: tuple[GroupLine, ...]) -> tuple[GroupLine, ...]:
    for index, line in enumerate(lines):
        if any(line.shape == other.shape for other in lines[:index]):
            raise ValueError(
                f"{line.kind} in groups of {line.nodes} x {line.gpus}, {line.groups} at once, "
                f"has a line already (number {index})"
            )
    return lines


@checked
class Cluster:
    """`nodes` hosts of `gpus_per_node` devices.

    intra: the link between the devices of a host; beta is per device.
    inter: the link between hosts; beta is per host, and the host's devices share it.
    groups: the hosts of each kind, if they are not all alike; then `device`, `intra` and `inter`
           are those of groups without their own
    lines: measured price lines of collectives, one per group shape that was measured
    shares: by which tensors are divided among runs of hosts (`sbp.mesh`), () for equal parts: a
           plan's choice, not written to a machine file
    collectives: the algorithms of the machine's communication library; not written to a file
    """

    VERSION: ClassVar[int] = 1

    name: Name
    nodes: Annotated[Count, Field(le=MOST_NODES)]
    gpus_per_node: Annotated[Count, Field(le=MOST_GPUS)]
    device: Device
    intra: Link
    inter: Link
    sources: Mapping[Annotated[str, OneOf(_numbers())], str] = dataclasses.field(
        default_factory=dict
    )
    groups: Annotated[tuple[HostGroup, ...], OMIT, AfterValidator(_several)] = ()
    calibration: Annotated[Calibration | None, OMIT] = None
    lines: Annotated[tuple[GroupLine, ...], OMIT, AfterValidator(_one_each)] = ()
    collectives: Annotated[SkipJsonSchema[InstanceOf[Collectives]], Field(exclude=True)] = (
        COLLECTIVES
    )
    shares: Annotated[SkipJsonSchema[tuple[int, ...]], Field(exclude=True)] = ()

    def __post_init__(self) -> None:
        hosts = sum(group.nodes for group in self.groups)
        if self.groups and hosts != self.nodes:
            raise ValueError(f"nodes: {self.nodes}, but the groups have {hosts} hosts")
        assert not self.shares or self.mesh.shares == self.shares

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(self.nodes, self.gpus_per_node, self.shares)

    @cached_property
    def runs(self) -> tuple[int, ...]:
        """The group of each run of hosts: as many hosts in each as divide every group."""
        sizes = [group.nodes for group in self.groups]
        each = math.gcd(*sizes)
        return tuple(number for number, n in enumerate(sizes) for _ in range(n // each))

    def device_of(self, group: int) -> Device:
        return self.groups[group].device or self.device if self.groups else self.device

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Devices that differ, or that get other shares."""
        found: list[Kind] = []
        for kind in self._kinds_of_runs:
            found += [kind] if kind not in found else []
        return tuple(found)

    def kind_of(self, node: int) -> Kind:
        """Of the devices of a host."""
        return self._kinds_of_runs[node * len(self._kinds_of_runs) // self.nodes]

    def group_name(self, node: int) -> str:
        """Of the group that a host is of; without groups of its run, as far as shares make such."""
        if self.groups:
            return self.groups[self.group_of(node)].name
        return f"run {node * len(self.shares) // self.nodes}"

    @cached_property
    def _kinds_of_runs(self) -> tuple[Kind, ...]:
        """Of runs of equally many hosts, as fine as the groups and the shares divide them."""
        if not self.groups and not self.shares:
            return (Kind(self.device),)
        shares = self.shares or (1,) * len(self.runs)
        groups = [n * len(self.runs) // len(shares) for n in range(len(shares))]
        devices = [self.device_of(self.runs[n]) if self.groups else self.device for n in groups]
        return tuple(
            Kind(device, share / max(shares)) for device, share in zip(devices, shares, strict=True)
        )

    @property
    def memory_bytes(self) -> int:
        """Of the device that has least."""
        return min(kind.device.memory_bytes for kind in self.kinds)

    def common_link(
        self, name: Literal["intra", "inter"], groups: Collection[int] | None = None
    ) -> Link:
        """At whose pace a collective goes that has devices of all groups, or runs in all.

        groups: those that are meant, if not all
        """
        own: Link = getattr(self, name)
        meant = [g for n, g in enumerate(self.groups) if groups is None or n in groups]
        links = [getattr(group, name) or own for group in meant] or [own]
        if all(link == links[0] for link in links):
            return links[0]
        return Link(
            max(link.alpha_s for link in links),
            max(link.beta_s_per_byte for link in links),
            max(link.call_s for link in links),
            max(link.transfer_latency_s for link in links),
        )

    def with_shares(self, shares: tuple[int, ...]) -> Cluster:
        """The same machine, its tensors divided so; ValueError unless they fit its hosts."""
        Mesh(self.nodes, self.gpus_per_node, shares)
        if shares and self.groups and len(shares) % len(self.runs):
            raise ValueError(
                f"{len(shares)} shares for groups of "
                f"{', '.join(str(group.nodes) for group in self.groups)} hosts; give "
                f"{len(self.runs)}, one for every {math.gcd(*(g.nodes for g in self.groups))} hosts"
            )
        table = self.collectives.balanced if shares else self.collectives.even
        return dataclasses.replace(self, shares=shares, collectives=table)

    def group_of(self, node: int) -> int:
        """The number of the group of a host, 0 if all are alike."""
        return self.runs[node * len(self.runs) // self.nodes] if self.groups else 0

    def groups_of(self, place: SubMesh) -> Counter[int]:
        """How many of its hosts are of each group, in their order."""
        hosts = range(place.first_node, place.first_node + place.nodes)
        return Counter(map(self.group_of, hosts))

    def part(self, place: SubMesh) -> Cluster:
        """The devices of `place` as a cluster of their own, with equal shares."""
        if not self.groups or place.shape == (self.nodes, self.gpus_per_node):
            return self.with_shape(*place.shape)
        hosts = self.groups_of(place)
        if len(hosts) == 1:
            return self.of_group(*hosts).with_shape(*place.shape)
        groups = tuple(dataclasses.replace(self.groups[g], nodes=n) for g, n in hosts.items())
        name = f"{self.name}, {' with '.join(group.name for group in groups)}"
        own = dataclasses.replace(
            self.with_shares(()), name=name, nodes=place.nodes, groups=groups, lines=(), sources={}
        )
        return own.with_shape(gpus_per_node=place.gpus)

    def between(self, places: Iterable[SubMesh]) -> Cluster:
        """The same hosts with the links by which devices of these places reach one another."""
        if not self.groups:
            return self
        groups = {group for place in places for group in self.groups_of(place)}
        intra, inter = (self.common_link(name, groups) for name in ("intra", "inter"))
        return dataclasses.replace(self, groups=(), lines=(), intra=intra, inter=inter)

    def of_group(self, number: int) -> Cluster:
        """The hosts of one group, without the others."""
        own = self.groups[number]
        return dataclasses.replace(
            self.with_shares(()), name=f"{self.name}, {own.name} alone", nodes=own.nodes,
            device=self.device_of(number), intra=own.intra or self.intra,
            inter=own.inter or self.inter, groups=(), lines=(), sources={},
        )  # fmt: skip

    @property
    def num_devices(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def slowest_link(self) -> Link:
        """The one that collectives of all devices use."""
        return self.inter if self.nodes > 1 else self.intra

    def with_shape(self, nodes: int | None = None, gpus_per_node: int | None = None) -> Cluster:
        """The same machine in another size; omitted arguments stay. ValueError if below 1."""
        if self.groups and nodes not in (None, self.nodes):
            raise ValueError(
                f"{self.name} has hosts of {len(self.groups)} kinds; how many of each make {nodes} "
                "is for its file to say"
            )
        sizes = {"nodes": nodes, "gpus_per_node": gpus_per_node}
        for name, size in sizes.items():
            expect(size, (int, type(None)), f"{name} is a whole number")
        changed = {k: v for k, v in sizes.items() if v is not None and v != getattr(self, k)}
        sources = {**self.sources, **dict.fromkeys(changed, "chosen by the caller (with_shape)")}
        return dataclasses.replace(self, **changed, sources=sources)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` inverts it."""
        return MACHINE_FILE.to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cluster:
        """Read what `to_json` wrote; a ValueError names the field that is wrong."""
        return MACHINE_FILE.from_json(data)

    def save(self, path: str | Path) -> None:
        """Write JSON atomically: the file is replaced only when the new one is complete."""
        MACHINE_FILE.save(self, path)

    @staticmethod
    def load(path: str | Path) -> Cluster:
        """Read what `save` wrote, or the machine of this name of those that come with autoddl.

        ValueError names the file and the field that is wrong.
        """
        check_path(path)
        shipped = MACHINES / f"{path}.json"
        if not Path(path).exists() and shipped.parent == MACHINES:
            if not shipped.is_file() and not Path(path).suffix:
                known = ", ".join(sorted(file.stem for file in MACHINES.glob("*.json")))
                raise ValueError(f"{path}: no such file, and no machine of autoddl's: {known}")
            path = shipped if shipped.is_file() else path
        return MACHINE_FILE.load(path)

    def __str__(self) -> str:
        return f"{self.name} {self.mesh}"


StoredCluster = Annotated[Cluster, Versioned()]
MACHINE_FILE: FileKind[Cluster] = FileKind(
    "machine file", StoredCluster, "'autoddl schema machine-file' has all fields", indent=2
)
