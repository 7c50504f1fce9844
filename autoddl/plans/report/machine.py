"""The machine that a plan was priced for: its numbers, their sources, how it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...cluster.spec import Cluster
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
            "source": cluster.sources.get(field, "the file does not say"),
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
    notes = tuple(f"calibration: {warning}" for warning in known.warnings)
    return table, Figures("calibration", "Measured", measured, notes=notes)


def estimates(cluster: Cluster) -> dict[str, str]:
    """Field -> name of each number that the cluster uses and whose source calls it an estimate."""
    return {
        field: number
        for field, number, _ in _numbers(cluster)
        if _ESTIMATE.search(cluster.sources.get(field, "")) and _is_used(cluster, field)
    }


def estimates_notes(cluster: Cluster) -> tuple[str, ...]:
    """A sentence that names them, if there are any."""
    found = estimates(cluster)
    if not found:
        return ()
    known = [
        number
        for field, number, _ in _numbers(cluster)
        if "." in field and _is_used(cluster, field) and field not in found
    ]
    what = ", ".join(found.values())
    if len(known) < len(found):
        what = f"all numbers{' but ' if known else ''}{' and '.join(known)}"
    return (f"estimates in {cluster.name} (`autoddl calibrate` measures them): {what}",)


def _is_used(cluster: Cluster, field: str) -> bool:
    if field.startswith("intra."):
        return cluster.gpus_per_node > 1
    return cluster.nodes > 1 or not field.startswith("inter.")


def _numbers(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """(field of the file, name, value with its unit)."""
    device = cluster.device
    yield "nodes", "hosts", str(cluster.nodes)
    yield "gpus_per_node", "devices of a host", str(cluster.gpus_per_node)
    yield "device.memory_bytes", "memory of a device", format_bytes(device.memory_bytes)
    for dtype, rate in device.flops_per_s.items():
        text = f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOP/s"
        yield f"device.flops_per_s.{dtype}", f"products in {dtype}", text
    bandwidth = f"{format_bytes(device.memory_bandwidth_bytes_per_s)}/s"
    yield "device.memory_bandwidth_bytes_per_s", "to and from its memory", bandwidth
    yield "device.launch_s", "an operator starts in", format_seconds(device.launch_s)
    links = ("intra", "inside a host", cluster.intra), ("inter", "between hosts", cluster.inter)
    for key, where, link in links:
        yield (
            f"{key}.beta_s_per_byte",
            f"bandwidth {where}",
            f"{format_bytes(link.bandwidth_bytes_per_s)}/s",
        )
        yield f"{key}.alpha_s", f"a message {where}", format_seconds(link.alpha_s)
        if link.call_s:
            yield f"{key}.call_s", f"a collective {where} starts in", format_seconds(link.call_s)
