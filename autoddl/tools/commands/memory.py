"""`autoddl memory`: what a plan's step keeps on a device; parsing and printing only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ...plans import Plan

EXAMPLES = """\b
Examples:
  autoddl memory plan.json
  autoddl memory plan.json --runtime executor
  autoddl memory plan.json --exact
"""


@click.command(epilog=EXAMPLES)
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "--exact", is_flag=True,
    help="Let OneFlow compile the job for CUDA devices, without having any, and read its plan.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["graph", "executor"]), default="graph", show_default=True,
    help="Whose step is predicted: OneFlow's compiled graph or autoddl's executor.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def memory(plan_file: str, exact: bool, runtime: str, as_json: bool) -> None:
    """Say what the plan in PLAN keeps on a device, by cause, at the fullest moment of a step."""
    from ...plans import Plan

    plan = Plan.load(plan_file)
    found = _exact(plan) if exact else _predicted(plan, runtime)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from ...plans.format import format_bytes

    who = "OneFlow's compiled plan" if exact else f"predicted for the {runtime}"
    click.echo(
        f"{plan.graph.name} on {plan.cluster}, batch {plan.batch} in {plan.micro_batches} parts, "
        f"{plan.optimizer}: {who}"
    )
    limit = format_bytes(plan.memory_limit_bytes)
    click.echo(f"{format_bytes(found['total_bytes'])} of {limit} a device")
    for cause, size in sorted(found["bytes"].items(), key=lambda item: -item[1]):
        click.echo(f"  {cause:<16}{format_bytes(size):>10}")
    click.echo(f"fullest at: {found['moment']}; the largest tensors then:")
    for size, what in found["largest"]:
        click.echo(f"  {format_bytes(size):>10}  {what}")
    for note in found["notes"]:
        click.echo(f"note: {note}")


def _predicted(plan: Plan, runtime: Any) -> dict[str, Any]:
    from ...plans.stage_figures import stage_figures

    peak = stage_figures(plan.stage).memory_peak(runtime)
    return {
        "total_bytes": peak.bytes,
        "bytes": dict(peak.by_cause),
        "moment": peak.moment,
        "largest": [[size, f"{cause}: {made}"] for size, cause, made in peak.largest],
        "notes": [],
    }


def _exact(plan: Plan) -> dict[str, Any]:
    from ...runtime.need import need_oneflow

    need_oneflow("autoddl memory --exact")
    from ...runtime.oneflow.memory.exact import exact_memory

    found = exact_memory(plan)
    moment, alive = found.peak()
    notes = [f"OneFlow places otherwise than planned: {text}" for text in found.differing]
    if plan.recomputed:
        notes.append(
            "each block waits for its gradient before it is run again, as in autoddl's executor; "
            "nn.Graph by itself may run blocks again earlier, and then saves less"
        )
    return {
        "total_bytes": found.total,
        "bytes": {
            "parameters": found.parameters,
            "optimizer": found.optimizer,
            "activations": found.activations,
            "buffers": found.buffers,
        },
        "moment": moment,
        "largest": [[r.bytes, f"{r.task} {r.name}"] for r in alive[:12]],
        "notes": notes,
    }
