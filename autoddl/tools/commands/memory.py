"""`autoddl memory`: what a plan's step keeps on a device; parsing and printing only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import JSON, examples

if TYPE_CHECKING:
    from ...cost.tape import Peak
    from ...plans import Plan
    from ...plans.report.sections import Section


@click.command(
    epilog=examples(
        "autoddl memory plan.json",
        "autoddl memory plan.json --runtime graph",
        "autoddl memory plan.json --exact",
    )
)
@click.argument("plan_file", metavar="PLAN")
@click.option(
    "--exact", is_flag=True,
    help="Let OneFlow compile the job for CUDA devices, without having any, and read its plan.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["executor", "graph"]), default="executor", show_default=True,
    help="Whose step is predicted: autoddl's executor, which trains, or OneFlow's compiled graph.",
)  # fmt: skip
@JSON
def memory(plan_file: str, exact: bool, runtime: Any, as_json: bool) -> None:
    """Say what the plan in PLAN keeps on a device, by cause, at the fullest moment of a step."""
    from ..at_work import at_work

    with at_work(f"reading {plan_file}"):  # imports take a second, too
        from ...plans import Plan
        from ...plans.report.contents import titles
        from ...plans.report.sections import Part, Report
        from ...plans.stage_figures import stage_figures
        from ..show import show

        plan = Plan.load(plan_file)
        known = [] if exact else [stage_figures(stage) for stage in plan.stages]
        told = _estimate(plan)
        parts = [_sections(own.memory_peak(runtime), own.limit_bytes, told) for own in known]
    who = f"predicted for the {runtime}"
    if exact:
        who, parts = "OneFlow's compiled plan", [_exact(plan)]
    title, how = titles(plan)
    stages = tuple(Part(f"stage {number}", part) for number, part in enumerate(parts))
    show(Report(title, f"{how}: {who}", (_stages(len(parts)),), stages, (), "stages"), as_json)


def _estimate(plan: Plan) -> tuple[str, ...]:
    """That the limit is one, if it is the machine file's and that says so."""
    from ...plans.report.machine import estimates

    cluster = plan.cluster
    is_own = plan.memory_limit_bytes != cluster.device.memory_bytes
    if is_own or "device.memory_bytes" not in estimates(cluster):
        return ()
    return (f"the limit is an estimate in {cluster.name}",)


def _stages(count: int) -> Section:
    """What JSON hangs the stages on."""
    from ...plans.report.sections import Table

    return Table("stages", "", (), tuple({"stage": number} for number in range(count)))


def _sections(peak: Peak, limit_bytes: float, notes: tuple[str, ...] = ()) -> tuple[Section, ...]:
    from ...plans.report.sections import Column, Figure, Figures, Table
    from ...plans.report.stage_sections import memory_table

    columns = (
        Column("bytes", "bytes", "bytes"),
        Column("cause", "cause"),
        Column("made_by", "made by"),
    )
    rows = tuple(
        {"bytes": size, "cause": cause, "made_by": made} for size, cause, made in peak.largest
    )
    total = Figures("", "", (Figure("total_bytes", "", peak.bytes),))
    largest = Table("largest", "The largest tensors then", columns, rows, notes=notes)
    return total, memory_table(peak, limit_bytes), largest


def _exact(plan: Plan) -> tuple[Section, ...]:
    from ...cost.tape import Peak
    from ...runtime.framework import need_oneflow
    from ..at_work import at_work

    with at_work(f"OneFlow compiles {plan.graph.name}", first_s=0):
        need_oneflow("autoddl memory --exact")
        from ...runtime.oneflow.memory.exact import exact_memory

        found = exact_memory(plan)
    moment, alive = found.peak()
    notes = [f"OneFlow places otherwise than planned: {text}" for text in found.differing]
    if found.differing_backward:
        some, more = found.differing_backward[:3], len(found.differing_backward) - 3
        notes.append(
            "nn.Graph, which is asked here, makes these gradients in other placements than planned "
            f"(autoddl's executor does not): {'; '.join(some)}{f'; and {more}' if more > 0 else ''}"
        )
    if plan.recomputed:
        notes.append(
            "each block waits for its gradient before it is run again, as in autoddl's executor; "
            "nn.Graph by itself may run blocks again earlier, and then saves less"
        )
    causes = {
        "parameters": found.parameters,
        "optimizer": found.optimizer,
        "activations": found.activations,
        "buffers": found.buffers,
    }
    largest = tuple((register.bytes, register.task, register.name) for register in alive[:12])
    return _sections(
        Peak(found.total, moment, causes, {}, largest), plan.memory_limit_bytes, tuple(notes)
    )
