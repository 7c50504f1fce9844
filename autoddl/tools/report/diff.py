"""The difference of two plans as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ...plans import Plan
from ...plans.diff import cost_differences, differences, total_difference
from ...plans.figures import figures
from ...plans.format import format_bytes, format_seconds
from .tables import console, short_topology


def print_difference(first: Plan, second: Plan) -> None:
    """The totals of both, then the layers that differ, the costliest difference first."""
    out = console()
    for name, plan in (("a", first), ("b", second)):
        cost = figures(plan).cost
        parts = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
        out.print(
            f"{name}: {plan.graph.name} on {plan.cluster}, batch {plan.batch}{parts}: "
            f"{format_seconds(figures(plan).iteration_s)}, {format_seconds(cost.communication_s)} "
            f"communication, {format_bytes(cost.memory_bytes)}"
        )
    found = differences(first, second)
    if not found:
        out.print("the plans are alike")
        return
    more = total_difference(first, second)
    out.print(f"b less a: {_seconds(more['seconds'])}, {_bytes(more['memory_bytes'])} memory")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("layer", "differs in", "a", "b"):
        table.add_column(name, overflow="fold")
    for name in ("time", "comput.", "comm.", "NIC", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for difference in found:
        cost = cost_differences(*difference.costs)
        table.add_row(
            f"{difference.name} x{difference.count}" if difference.count > 1 else difference.name,
            ", ".join(difference.what) or "costs",
            short_topology(difference.first.topology),
            short_topology(difference.second.topology),
            _seconds(cost["seconds"]),
            _seconds(cost["compute_s"]),
            _seconds(cost["communication_s"]),
            _bytes(cost["nic_bytes"]),
            _bytes(cost["memory_bytes"]),
        )
    out.print(table)


def _seconds(value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_seconds(value)}"


def _bytes(value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_bytes(value)}"
