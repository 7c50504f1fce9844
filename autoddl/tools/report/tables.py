"""Tables for a terminal: a plan layer by layer, and the doctor's findings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...cost.account import Cost
from ...plans import Plan, StagePlan
from ...plans.explain import layer_texts, pipeline_lines, rows_lines, saved_text
from ...plans.format import (
    extrapolation_text,
    format_bytes,
    format_seconds,
    layer_rows,
    savings_lines,
    timed_text,
)
from ...plans.stage_figures import stage_figures
from ..doctor import Check

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "fail": ("FAIL", "red")}
WIDTH = 140  # where the output is no terminal


def console() -> Console:
    """A console on stdout, wide enough for the tables if stdout is a file or a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH)


def stage_table(plan: StagePlan) -> Table:
    """One row a layer, and the totals to which the rows add up.

    Layers of which all figures are equal share a row, which shows what they cost together.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name in ("layer", "operator", "topology", "signature"):
        table.add_column(name, overflow="fold")
    for name in ("comm.", "NIC", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in layer_rows(layer_texts(plan)):
        table.add_row(
            f"{row.name} x{row.count}" if row.count > 1 else row.name,
            row.layer.op,
            short_topology(row.layer.topology),
            short_signature(row.layer.signature),
            *_figures(row.cost),
        )
    table.add_section()
    table.add_row("all layers", "", "", "", *_figures(stage_figures(plan).cost))
    return table


def _figures(cost: Cost) -> tuple[str, str, str]:
    return (
        format_seconds(cost.communication_s),
        format_bytes(cost.nic_bytes.total),
        format_bytes(cost.memory_bytes),
    )


def short_topology(topology: str) -> str:
    """The topology without its groups of one device: `(S0:(2,1), B:(1,1))` -> `(S0:(2,1))`."""
    parts = [f"{name}:{group}" for name, group in re.findall(r"(\w+):(\([^)]*\))", topology)]
    return f"({', '.join(part for part in parts if not part.endswith(':(1,1)'))})"


def short_signature(signature: str) -> str:
    """Runs of equal labels counted: `(S0, S0, B) -> (P, P, P)` becomes `(S0*2, B) -> (P*3)`."""
    return re.sub(r"\b(\w+)((?:, \1\b)+)", _counted, signature)


def _counted(run: re.Match[str]) -> str:
    return f"{run[1]}*{1 + run[2].count(',')}"


def print_plan(plan: Plan) -> None:
    """The plan's totals, then a table of each stage, on stdout."""
    out = console()
    parts = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    out.print(
        Text(f"{plan.graph.name}", style="bold"),
        Text(f"on {plan.cluster}, batch {plan.batch}{parts}, {plan.optimizer}"),
    )
    if len(plan.stages) == 1:
        _print_stage(out, plan.stage)
        return
    for line in pipeline_lines(plan):
        out.print(Text(line))
    for number, stage in enumerate(plan.stages):
        out.print(Text(f"stage {number}", style="bold"))
        _print_stage(out, stage)


def _print_stage(out: Console, plan: StagePlan) -> None:
    predicted = stage_figures(plan)
    cost = predicted.cost
    out.print(
        f"predicted {format_seconds(cost.iteration_s)} a step: "
        f"{format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication "
        f"({format_bytes(cost.nic_bytes.total)} through each NIC); "
        f"memory {format_bytes(cost.memory_bytes)} of {format_bytes(plan.memory_limit_bytes)}"
    )
    for line in (
        *rows_lines(plan.graph),
        *savings_lines(plan.micro_batches, predicted.savings),
    ):
        out.print(Text(line))
    if plan.recomputed:
        out.print(Text(saved_text(plan)))
    if predicted.timed.computing:
        out.print(Text(timed_text(predicted.timed)))
    if predicted.extrapolated:
        out.print(Text(extrapolation_text(predicted.extrapolated), style="yellow"))
    out.print(stage_table(plan))


def print_checks(checks: Sequence[Check]) -> None:
    """The doctor's findings, each with what mends it, on stdout."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        word, colour = MARKS[check.status]
        found = f"{check.found}\n-> {check.mend}" if check.mend else check.found
        table.add_row(Text(word, style=colour), check.name, found)
    console().print(table)
