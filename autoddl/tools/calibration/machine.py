"""The machine file from a calibration's record: record -> fit -> Cluster, without the machine.

The same record gives the same file, byte for byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from ...cluster.link import Calibration, Link, Range
from ...cluster.spec import Cluster, Curve, Device, HostGroup, OperatorTimes
from ...runtime.measure.measured import known_to
from ...runtime.measure.record import BesideTimes, DeviceTimes, Record, Timing
from ...runtime.measure.schedule import Point
from ...runtime.measure.statistics import least_samples
from .fit import Fit, fit_links
from .lines import fit_lines

SLOWDOWNS = ("computation_slowdown_ratio", "collective_slowdown_ratio")


def fit_record(record: Record) -> Fit:
    """Fit the links to the record's finished points; ValueError if there are too few of them."""
    return fit_links({p: t.median_s for p, t in record.done().items()}, record.confidence)


def machine_of(record: Record, fit: Fit, device: Device | None = None) -> Cluster:
    """The machine file's content; `device` instead of the measured one.

    ValueError if neither was measured nor given.
    """
    done = record.done()
    samples = sum(t.repeats for t in done.values())
    sources: dict[str, str] = {}
    if device is None:
        if record.device is None:
            raise ValueError(
                "the record has no measurement of the device; calibrate again, or give its numbers "
                "with --device-from"
            )
        device = device_of(record.device)
        sources.update(_device_sources(record, device))
    else:
        sources.update(dict.fromkeys(_device_names(device), "given (--device-from)"))
    if record.operators:
        operators = {key: operator_times(p) for key, p in record.operators.items()}
        device = dataclasses.replace(device, operators=operators)
        sources["device.operators"] = (
            f"measured by autoddl calibrate on {record.date}, all processes at once"
        )
    if fit.shuffle_s_per_byte:
        device = dataclasses.replace(device, shuffle_s_per_byte=fit.shuffle_s_per_byte)
        sources["device.shuffle_s_per_byte"] = (
            f"fitted to the collectives measured on {record.date}"
        )
    measured = f"measured by autoddl calibrate on {record.date}"
    sources["nodes"] = sources["gpus_per_node"] = f"{measured}: {_where(record)}"
    fitted = f"{measured}: fitted to {samples} samples of {len(done)} points"
    links, of_links = _links(fit, fitted, record.beside, measured)
    sources.update(of_links)
    return Cluster(
        name=record.name,
        nodes=record.nodes,
        gpus_per_node=record.gpus_per_node,
        device=device,
        intra=links["intra"],
        inter=links["inter"],
        sources=sources,
        calibration=Calibration(
            date=record.date,
            samples=samples,
            confidence=record.confidence,
            intervals=fit.intervals,
            r2=fit.r2,
            errors=fit.errors,
            warnings=fit.warnings,
            ranges=ranges_of(done),
            command=record.command,
            software=record.software,
            notes=tuple(notes_of(record)),
        ),
        lines=fit_lines({p: t.median_s for p, t in done.items()}),
    )


def check_kinds(kinds: Sequence[Cluster], nodes: int, gpus_per_node: int) -> None:
    """ValueError unless the machines, each of hosts that are alike, make one of this shape."""
    for kind in kinds:
        if kind.groups or kind.gpus_per_node != gpus_per_node:
            raise ValueError(
                f"{kind.name} must have hosts of one kind with {gpus_per_node} devices each, to be "
                f"a part of this machine; it has {len(kind.groups) or 1} and {kind.gpus_per_node}"
            )
    if sum(kind.nodes for kind in kinds) != nodes:
        hosts = " + ".join(str(kind.nodes) for kind in kinds)
        raise ValueError(f"the files of --device-from have {hosts} hosts, this machine {nodes}")


def with_kinds(cluster: Cluster, kinds: Sequence[Cluster]) -> Cluster:
    """The machine with the hosts of each kind, in the order of their ranks, as a group.

    A group has the devices, and the links inside its hosts, of its own machine file; the links
    between hosts are those that were measured on all together.
    """
    own = ("device.", "intra.")
    groups = tuple(
        HostGroup(
            kind.name, kind.nodes, kind.device, kind.intra,
            sources={name: why for name, why in kind.sources.items() if name.startswith(own)},
        )
        for kind in kinds
    )  # fmt: skip
    return dataclasses.replace(cluster, groups=groups)


def _links(
    fit: Fit, fitted: str, beside: Mapping[str, BesideTimes], measured: str
) -> tuple[dict[str, Link], dict[str, str]]:
    """Both links, one in place of a link that nothing used, and the sources of their numbers.

    beside: what computation and collectives on a link slow each other down
    """
    links: dict[str, Link] = {}
    sources: dict[str, str] = {}
    for name, link, other in (("intra", fit.intra, fit.inter), ("inter", fit.inter, fit.intra)):
        given = link or other
        assert given is not None
        links[name] = given
        if link is not None:
            why = fitted
        elif name == "inter":
            why = "not measured, since there was one host only; set to the value of intra"
        else:
            why = "never used with one process per host; set to the value of inter"
        sources.update({f"{name}.{field}": why for field in given.numbers})
    for name, times in beside.items():
        ratios = zip(SLOWDOWNS, map(_short, times.slowdowns), strict=True)
        links[name] = dataclasses.replace(links[name], **dict(ratios))
        sources.update({f"{name}.{field}": f"{measured}, both at once" for field in SLOWDOWNS})
    return links, sources


def _where(record: Record) -> str:
    hosts = len(set(record.machine.hosts))
    where = f"{record.nodes} x {record.gpus_per_node} processes"
    return where if hosts == record.nodes else f"{where}, all on {hosts} host{'s' * (hosts > 1)}"


def notes_of(record: Record) -> Iterator[str]:
    """How well the times are known, and what was left out and why."""
    done = record.done().values()
    if record.timings:
        usual, worst = known_to(record), known_to(record, 0.9)
        yield (
            f"medians of the {len(done)} points are known to {usual:.0%} (half of them), "
            f"to {worst:.0%} (nine in ten)"
        )
    least = least_samples(record.confidence)
    few = sum(timing.repeats < least for timing in done)
    if few:
        yield f"points of fewer than {least} samples, whose medians are rough: {few}"
    by_reason: dict[str, list[str]] = {}
    for name, reason in record.skipped.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"left out {len(names)} such as {names[0]}: {reason}"


def device_of(times: DeviceTimes) -> Device:
    """The device's numbers from its medians."""
    curves = {d: efficiency_curve(points, times.launch_s) for d, points in times.matmul.items()}
    bandwidths = [size / max(s - times.launch_s, 1e-9) for size, s in times.copy]
    return Device(
        kind=times.kind,  # type: ignore[arg-type]
        memory_bytes=times.memory_bytes,
        flops_per_s={dtype: _plateau(curve) for dtype, curve in curves.items()},
        # large copies come from memory, small ones from a cache
        memory_bandwidth_bytes_per_s=_short(bandwidths[-1]),
        launch_s=_short(times.launch_s),
        efficiency=curves,
    )


def efficiency_curve(points: Sequence[tuple[float, float]], launch_s: float) -> Curve:
    """(FLOPs, FLOP/s) from (FLOPs, seconds), without the start of the operator.

    More FLOPs never take less time: neighbours that measured so share the time that both took, each
    in proportion to its FLOPs (pool adjacent violators on the seconds).
    """
    # what starting takes was measured with less than perfect precision
    seconds = rising([max(s - launch_s, 0.1 * s) for _, s in sorted(points)])
    return tuple((f, _short(f / s)) for (f, _), s in zip(sorted(points), seconds, strict=True))


def operator_times(points: Sequence[tuple[float, float, float]]) -> OperatorTimes:
    """From (work, forward seconds, backward seconds): neither falls with more work.

    Of points of the same work, the last counts.
    """
    by_work = sorted({done: (forward, backward) for done, forward, backward in points}.items())
    forward_s = rising([forward for _, (forward, _) in by_work])
    backward_s = rising([backward for _, (_, backward) in by_work])
    return OperatorTimes(
        tuple(
            (done, _short(a), _short(b))
            for (done, _), a, b in zip(by_work, forward_s, backward_s, strict=True)
        )
    )


def rising(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall: neighbours that do share their mean.

    This is pool adjacent violators.
    """
    blocks: list[list[float]] = []  # [mean, number of values]
    for value in values:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [[(a * n + b * m) / (n + m), n + m]]
    return [mean for mean, count in blocks for _ in range(int(count))]


def ranges_of(done: dict[Point, Timing]) -> tuple[Range, ...]:
    """Per collective and group shape, the messages that were measured."""
    sizes: dict[tuple[str, int, int, int], list[int]] = {}
    for point in done:
        shape = point.shape
        key = (point.kind, shape.nodes, shape.gpus, shape.groups)
        sizes.setdefault(key, []).append(point.bytes)
    return tuple(Range(*key, min(found), max(found)) for key, found in sorted(sizes.items()))


def _plateau(curve: Curve) -> float:
    """The best rate of the largest matmuls."""
    return max(rate for _, rate in curve[-2:])


def _device_names(device: Device) -> list[str]:
    names = ["memory_bytes", "memory_bandwidth_bytes_per_s", "launch_s"]
    names += [f"flops_per_s.{dtype}" for dtype in device.flops_per_s]
    names += [f"efficiency.{dtype}" for dtype in device.efficiency]
    return [f"device.{name}" for name in names]


def _device_sources(record: Record, device: Device) -> dict[str, str]:
    measured = (
        f"measured by autoddl calibrate on {record.date}, all {record.gpus_per_node} processes of "
        "a host at once"
    )
    return dict.fromkeys(_device_names(device), measured)


def _short(number: float) -> float:
    return float(f"{number:.5g}")
