"""The machine that a plan was priced for: its numbers, their sources, how it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...cluster.link import Link
from ...cluster.spec import Cluster, Device
from ..format import format_bytes, format_seconds
from .sections import Column, Figure, Figures, Row, Section, Table

# how sources put it that nobody has measured a number; a data sheet's is none, if nothing is added
_ESTIMATE = re.compile(r"estimate|assum|not measured|set to the value of", re.IGNORECASE)


def machine_sections(cluster: Cluster) -> tuple[Section, ...]:
    """Each number of the machine file with its source, and the calibration's date and command."""
    rows: list[Row] = [
        {
            "field": field,
            "number": number,
            "value": text,
            "source": _source(cluster, field) or "the file does not say",
        }
        for field, number, text in _numbers(cluster)
    ]
    columns = (
        Column("number", "number"),
        Column("value", "value"),
        Column("source", "where it comes from"),
    )
    table = Table("machine", f"The machine file {cluster.name}", columns, tuple(rows))
    known = cluster.calibration
    if known is None:
        return (table,)
    measured = (
        Figure("date", "on", known.date),
        Figure("command", "by", known.command or None),
        Figure("software", "with", known.software or None),
        Figure("samples", "samples", known.samples, "count"),
        Figure("r2", "R2", f"{known.r2:.3f}"),
    )
    notes = tuple(f"calibration: {warning}" for warning in (*known.warnings, *known.notes))
    return table, Figures("calibration", "Measured", measured, notes=notes)


def estimates(cluster: Cluster) -> dict[str, str]:
    """Field -> name of each number that the cluster uses and whose source calls it an estimate."""
    return {
        field: number
        for field, number, _ in _numbers(cluster)
        if _ESTIMATE.search(_source(cluster, field)) and _is_used(cluster, field)
    }


def estimates_notes(cluster: Cluster) -> tuple[str, ...]:
    """A sentence that names them, if there are any."""
    found = estimates(cluster)
    if not found:
        return ()
    known = [
        number
        for field, number, _ in _numbers(cluster)
        if "." in field.removesuffix(".nodes") and _is_used(cluster, field) and field not in found
    ]
    what = ", ".join(found.values())
    if len(known) < len(found):
        what = f"all numbers{' but ' if known else ''}{' and '.join(known)}"
    return (f"estimates in {cluster.name} (`autoddl calibrate` measures them): {what}",)


def _is_used(cluster: Cluster, field: str) -> bool:
    if ".intra." in f".{field}":
        return cluster.gpus_per_node > 1
    return cluster.nodes > 1 or ".inter." not in f".{field}"


def _source(cluster: Cluster, field: str) -> str:
    """Where the file says that a number comes from; of a group's own, the group says it.

    How many hosts a group has, the machine may say for all groups.
    """
    for group in cluster.groups:
        if field.startswith(f"{group.name}."):
            own = field.removeprefix(f"{group.name}.")
            of_all = cluster.sources.get("nodes", "") if own == "nodes" else ""
            return group.sources.get(own, of_all)
    return cluster.sources.get(field, "")


def _numbers(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """(field of the file, name, value with its unit); a group's fields begin with its name."""
    yield "nodes", "hosts", str(cluster.nodes)
    yield "gpus_per_node", "devices of a host", str(cluster.gpus_per_node)
    yield from _of_device("device", cluster.device)
    yield from _of_link("intra", "inside a host", cluster.intra)
    yield from _of_link("inter", "between hosts", cluster.inter)
    for group in cluster.groups:
        own = [(f"{group.name}.nodes", "hosts", str(group.nodes))]
        if group.device is not None:
            own += _of_device(f"{group.name}.device", group.device)
        if group.intra is not None:
            own += _of_link(f"{group.name}.intra", "inside a host", group.intra)
        if group.inter is not None:
            own += _of_link(f"{group.name}.inter", "between hosts", group.inter)
        yield from ((field, f"{group.name}: {name}", value) for field, name, value in own)


def _of_device(field: str, device: Device) -> Iterator[tuple[str, str, str]]:
    yield f"{field}.memory_bytes", "memory of a device", format_bytes(device.memory_bytes)
    for dtype, rate in device.flops_per_s.items():
        text = f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOP/s"
        yield f"{field}.flops_per_s.{dtype}", f"products in {dtype}", text
    bandwidth = f"{format_bytes(device.memory_bandwidth_bytes_per_s)}/s"
    yield f"{field}.memory_bandwidth_bytes_per_s", "to and from its memory", bandwidth
    yield f"{field}.launch_s", "an operator starts in", format_seconds(device.launch_s)


def _of_link(field: str, where: str, link: Link) -> Iterator[tuple[str, str, str]]:
    rate = f"{format_bytes(link.bandwidth_bytes_per_s)}/s"
    yield f"{field}.beta_s_per_byte", f"bandwidth {where}", rate
    yield f"{field}.alpha_s", f"a message {where}", format_seconds(link.alpha_s)
    if link.call_s:
        yield f"{field}.call_s", f"a collective {where} starts in", format_seconds(link.call_s)
