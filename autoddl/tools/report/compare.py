"""A comparison of schemes as a table and as bars."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from ...plans.format import format_bytes, format_seconds
from ..compare import Comparison, Scheme, causes
from .tables import console

# Parts of an iteration and their colours, which differ in lightness as well.
BUBBLE = "bubble"
PARTS = (
    ("computation", "#b8c4ce"),
    ("forward", "#2a6f97"),
    ("backward", "#61a5c2"),
    ("gradient sync", "#e07a5f"),
    (BUBBLE, "#e9e4d8"),
)


def print_comparison(found: Comparison) -> None:
    """One row a scheme, the fastest first, and what ours saves against the closest."""
    out, model = console(), found.model
    out.print(
        Text(found.graph.name, style="bold"),
        Text(f"on {model.cluster}, batch {found.graph.batch}, {model.optimizer}"),
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("scheme", "topology"):
        table.add_column(name, overflow="fold")
    for name in (
        "time", "x ours", "comput.", "comm.", "forward", "backward", "gradients", "NIC", "memory",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for scheme in sorted(found.schemes, key=lambda s: s.seconds):
        table.add_row(*_cells(scheme, found.ours.seconds), style=_style(scheme, found.ours))
    out.print(table)
    closest = found.closest
    if closest is None:
        out.print("none of the known schemes can run")
        return
    less = found.reductions(closest)
    words = (
        f"{_less(less['iteration_s'])} time",
        f"{_less(less['communication_s'])} communication time",
        f"{_less(less['nic_bytes'])} bytes through each NIC",
    )
    out.print(f"the closest is {closest.name}; ours takes {', '.join(words)}")


def _less(share: float) -> str:
    """0.2 -> '20.0% less'."""
    return f"{abs(share):.1%} {'more' if share < 0 else 'less'}"


def _cells(scheme: Scheme, ours_s: float) -> list[str]:
    if not scheme.runs:
        memory = "" if scheme.memory_bytes is None else format_bytes(scheme.memory_bytes)
        return [scheme.name, f"{scheme.topology}: {scheme.why}", *[""] * 8, memory]
    cost, parts = scheme.cost, scheme.micro_batches
    topology = scheme.topology + (f", {parts} micro-batches" if parts > 1 else "")
    topology += f", bubble {scheme.bubble:.0%}" if scheme.stages > 1 else ""
    by_cause = causes(cost.inter_s, cost.intra_s)
    return [
        scheme.name,
        topology,
        format_seconds(scheme.seconds),
        f"{scheme.seconds / ours_s:.2f}" if ours_s else "",
        format_seconds(cost.compute_s),
        format_seconds(cost.communication_s),
        *(format_seconds(seconds) for seconds in by_cause.values()),
        format_bytes(cost.nic_bytes.total),
        format_bytes(cost.memory_bytes),
    ]


def _style(scheme: Scheme, ours: Scheme) -> str:
    if scheme is ours:
        return "bold"
    return "" if scheme.runs else "dim"


def plot_comparison(found: Comparison, file: str | Path) -> None:
    """Bars of the iteration's seconds by cause, one a scheme. ValueError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            f"a picture of the bars needs matplotlib (pip install matplotlib): {error}"
        ) from error

    schemes = [scheme for scheme in found.schemes if scheme.runs]
    figure = Figure(figsize=(8, 1.2 + 0.5 * len(schemes)), layout="constrained")
    axes = figure.subplots()
    names = [f"{scheme.name}\n{scheme.topology}" for scheme in schemes]
    left = [0.0] * len(schemes)
    for number, (part, colour) in enumerate(PARTS):
        widths = [part_seconds(scheme)[number] for scheme in schemes]
        if part == BUBBLE and not any(scheme.stages > 1 for scheme in schemes):
            continue
        axes.barh(names, widths, left=left, label=part, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, scheme in enumerate(schemes):
        axes.text(left[place], place, f" {format_seconds(scheme.seconds)}", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("predicted seconds of an iteration")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", labelsize=8)
    axes.legend(frameon=False, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.suptitle(f"{found.graph.name} on {found.model.cluster}, batch {found.graph.batch}")
    figure.savefig(file, dpi=150)


def part_seconds(scheme: Scheme) -> tuple[float, ...]:
    """The seconds of `PARTS`, in their order. Only of a scheme that can run."""
    cost = scheme.cost
    parts = (cost.compute_s, *causes(cost.inter_s, cost.intra_s).values())
    return (*parts, max(scheme.seconds - sum(parts), 0.0))
