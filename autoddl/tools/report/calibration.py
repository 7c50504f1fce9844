"""A calibration on a terminal: the fitted links, the error of each collective, the warnings."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ...cluster.group_line import GroupLine
from ...cluster.link import Link
from ...cluster.spec import Cluster, link_json
from ...plans.format import format_bytes, format_seconds
from ...runtime.measure.record import Record
from ...runtime.measure.schedule import KINDS
from ...runtime.measure.statistics import least_samples
from ..calibration.fit import BAD_ERROR, SHUFFLE, Fit
from ..calibration.lines import lines_errors
from .tables import console


def links_table(cluster: Cluster, fit: Fit) -> Table:
    """One row per fitted number, with its interval."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("link", "number", "value", f"{cluster_confidence(cluster):.0%} interval"):
        table.add_column(name)
    for name, link in (("intra", fit.intra), ("inter", fit.inter)):
        if link is None:
            continue
        for field in link_json(link):
            low, high = fit.intervals.get(f"{name}.{field}", (0.0, float("inf")))
            table.add_row(name, field, _value(link, field), f"{low:.3g} to {high:.3g}")
    if SHUFFLE in fit.intervals:
        low, high = fit.intervals[SHUFFLE]
        value = f"{fit.shuffle_s_per_byte:.3g}"
        table.add_row("device", "shuffle_s_per_byte", value, f"{low:.3g} to {high:.3g}")
    return table


def cluster_confidence(cluster: Cluster) -> float:
    return 0.95 if cluster.calibration is None else cluster.calibration.confidence


def errors_table(record: Record, fit: Fit, lines: Sequence[GroupLine]) -> Table:
    """One row per collective: its points and messages, how far off the fit and the lines are."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("collective", "points", "messages", "median error", "largest error", "own lines"):
        table.add_column(name)
    done = record.done()
    beside = lines_errors(fit.residuals, lines)
    for kind in KINDS:
        sizes = [p.bytes for p in done if p.kind == kind]
        if not sizes:
            continue
        errors = [abs(r.error) for r in fit.residuals if r.point.kind == kind]
        style = "red" if errors and fit.errors[kind] > BAD_ERROR else ""
        table.add_row(
            kind,
            str(len(sizes)),
            f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}",
            f"{fit.errors[kind]:.0%}" if errors else "not fitted",
            f"{max(errors):.0%}" if errors else "",
            f"{beside[kind]:.0%}" if kind in beside else "",
            style=style,
        )
    return table


def print_calibration(record: Record, fit: Fit, cluster: Cluster, files: Sequence[str]) -> None:
    """What was measured and fitted, on stdout."""
    out = console()
    device = cluster.device
    rates = ", ".join(f"{d} {rate / 1e9:.3g} GFLOP/s" for d, rate in device.flops_per_s.items())
    out.print(
        Text(cluster.name, style="bold"),
        Text(f"{record.nodes} x {record.gpus_per_node} on {record.machine}, {record.date}"),
    )
    out.print(
        f"a device: matmul {rates}; memory {format_bytes(device.memory_bytes)} at "
        f"{format_bytes(device.memory_bandwidth_bytes_per_s)}/s; "
        f"an operator starts in {format_seconds(device.launch_s)}"
    )
    if device.operators:
        out.print(f"{len(device.operators)} operators of models timed by themselves")
    out.print(links_table(cluster, fit))
    out.print(errors_table(record, fit, cluster.lines))
    out.print(f"R2 of the logarithms {fit.r2:.3f} over {len(fit.residuals)} points")
    least = least_samples(record.confidence)
    few = sum(timing.repeats < least for timing in record.done().values())
    if few:
        out.print(f"{few} points have fewer than {least} samples: their medians are rough")
    if record.skipped:
        reasons = sorted(set(record.skipped.values()))
        out.print(f"left out {len(record.skipped)} points: {'; '.join(reasons[:3])}")
    for warning in fit.warnings:
        out.print(Text(f"WARNING: {warning}", style="bold red"))
    out.print(f"written: {', '.join(files)}")


def _value(link: Link, field: str) -> str:
    value = getattr(link, field)
    if field == "beta_s_per_byte":
        return f"{value:.3g} ({format_bytes(link.bandwidth_bytes_per_s)}/s)"
    return format_seconds(value)
