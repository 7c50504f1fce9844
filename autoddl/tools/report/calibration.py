"""A calibration as sections: the fitted links, the error of each collective, the warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...cluster.link import GroupLine, Link
from ...cluster.spec import Cluster
from ...plans.format import format_bytes, format_seconds
from ...plans.report.sections import Column, Figure, Figures, Report, Row, Table
from ...runtime.measure.record import Record
from ...runtime.measure.schedule import KINDS
from ..calibration.fit import BAD_ERROR, SHUFFLE, Fit
from ..calibration.lines import lines_errors


def calibration_report(record: Record, fit: Fit, cluster: Cluster, files: Sequence[str]) -> Report:
    """What was measured and fitted, and how far the prices are off."""
    title = f"{cluster.name}: {record.nodes} x {record.gpus_per_node} on {record.machine}"
    sections = (
        _device(cluster),
        links_table(cluster, fit),
        *beside_tables(record),
        errors_table(record, fit, cluster.lines),
        Figures("", "Fit", (
            Figure("r2", "R2 of the logarithms", f"{fit.r2:.3f}"),
            Figure("points", "points", len(fit.residuals), "count"),
        ), notes=(*_notes(cluster), f"written: {', '.join(files)}")),
    )  # fmt: skip
    return Report(title, record.date, sections)


def links_table(cluster: Cluster, fit: Fit) -> Table:
    """One row per fitted number, with its interval."""
    rows: list[Row] = []
    for name, link in (("intra", fit.intra), ("inter", fit.inter)):
        for field in () if link is None else link.numbers:
            rows.append(_link_row(fit, name, field, _value(link, field) if link else ""))
    if SHUFFLE in fit.intervals:
        name, _, field = SHUFFLE.partition(".")
        rows.append(_link_row(fit, name, field, f"{fit.shuffle_s_per_byte:.3g}"))
    confidence = 0.95 if cluster.calibration is None else cluster.calibration.confidence
    columns = (
        Column("link", "link"),
        Column("number", "number"),
        Column("value", "value"),
        Column("interval", f"{confidence:.0%} interval"),
    )
    return Table("links", "Links", columns, tuple(rows))


def _link_row(fit: Fit, name: str, field: str, value: str) -> Row:
    low, high = fit.intervals.get(f"{name}.{field}", (0.0, float("inf")))
    if field.endswith("_s") and high < float("inf"):
        interval = f"{format_seconds(low)} to {format_seconds(high)}"
    else:
        interval = f"{low:.3g} to {high:.3g}"
    return {"link": name, "number": field, "value": value, "interval": interval}


def beside_tables(record: Record) -> Iterator[Table]:
    """By link, how much computation and collectives slow each other down, if that was measured."""
    rows: list[Row] = []
    for name, times in record.beside.items():
        computation, collective = times.slowdowns
        rows.append({"link": name, "computation": computation, "collective": collective})
    if rows:
        columns = (
            Column("link", "link"),
            Column("computation", "computation beside a collective takes longer by", "share"),
            Column("collective", "a collective beside computation by", "share"),
        )
        yield Table("beside", "Both at once", columns, tuple(rows))


def errors_table(record: Record, fit: Fit, lines: Sequence[GroupLine]) -> Table:
    """One row per collective: its points and messages, how far off the fit and the lines are."""
    done = record.done()
    beside = lines_errors(fit.residuals, lines)
    rows: list[Row] = []
    for kind in KINDS:
        sizes = [p.bytes for p in done if p.kind == kind]
        if not sizes:
            continue
        errors = [abs(r.error) for r in fit.residuals if r.point.kind == kind]
        bad = bool(errors) and fit.errors[kind] > BAD_ERROR
        rows.append(
            {
                "kind": kind,
                "points": len(sizes),
                "messages": f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}",
                "median": fit.errors[kind] if errors else None,
                "largest": max(errors, default=None),
                "lines": beside.get(kind),
                "remark": "far off" if bad else "" if errors else "not fitted",
            }
        )
    columns = (
        Column("kind", "collective"),
        Column("points", "points", "count"),
        Column("messages", "messages"),
        Column("median", "median error", "share"),
        Column("largest", "largest error", "share"),
        Column("lines", "own lines", "share"),
        Column("remark", ""),
    )
    return Table("errors", "Errors of the prices", columns, tuple(rows))


def _device(cluster: Cluster) -> Figures:
    device = cluster.device
    rates = ", ".join(f"{d} {rate / 1e9:.3g} GFLOP/s" for d, rate in device.flops_per_s.items())
    timed = (f"{len(device.operators)} operators of models timed by themselves",)
    bandwidth = f"{format_bytes(device.memory_bandwidth_bytes_per_s)}/s"
    figures = (
        Figure("matmul", "products", rates),
        Figure("memory_bytes", "memory", device.memory_bytes, "bytes"),
        Figure("bandwidth", "at", bandwidth),
        Figure("launch_s", "an operator starts in", device.launch_s, "seconds"),
    )
    return Figures("device", "A device", figures, notes=timed if device.operators else ())


def _notes(cluster: Cluster) -> Iterator[str]:
    assert cluster.calibration is not None
    yield from cluster.calibration.notes
    for warning in cluster.calibration.warnings:
        yield f"WARNING: {warning}"


def _value(link: Link, field: str) -> str:
    value = getattr(link, field)
    if field == "beta_s_per_byte":
        return f"{value:.3g} ({format_bytes(link.bandwidth_bytes_per_s)}/s)"
    return format_seconds(value)
