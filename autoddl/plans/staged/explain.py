"""A plan with stages in words and numbers."""

from __future__ import annotations

from ..explain import rows_lines
from ..format import format_bytes, format_seconds
from ..schedule.costs import Costs
from ..schedule.simulate import simulate
from .figures import StagedFigures


def explain(plan: StagedFigures) -> str:
    """The pipeline in words and numbers, then each stage's plan."""
    timeline = plan.timeline
    chunks = "" if plan.chunks == 1 else f" of {plan.chunks} parts"
    what = "stage" if plan.chunks == 1 else "part"
    delayed = "" if plan.delay is None else f", weight gradients {plan.delay} late"
    lines = [
        f"{plan.cut.graph.name} on {plan.cluster}, batch {plan.batch} in "
        f"{plan.micro_batches} micro-batches, {plan.num_stages} stages{chunks}, "
        f"{plan.schedule_name}{delayed}",
        f"predicted {format_seconds(plan.iteration_s)} a step: bubble {timeline.bubble:.1%} "
        f"(transfers in no time: {_bubble_without_transfers(plan):.1%})",
    ]
    lines += rows_lines(plan.cut.graph)
    for n, stage in enumerate(plan.stages):
        price, held = plan.prices[n], plan.schedule.stash[n % plan.num_stages]
        memory = plan.memory_bytes[n % plan.num_stages]
        whole = "" if plan.chunks == 1 else f" of stage {n % plan.num_stages}"
        lines.append(
            f"{what} {n}: layers {stage.first}-{stage.last - 1} on {stage.place}: "
            f"forward {format_seconds(price.forward_s)}, "
            f"backward {format_seconds(price.backward_s)}, "
            f"once {format_seconds(price.once_s)}; "
            f"memory{whole} {format_bytes(memory)} with {held} micro-batches in flight"
        )
    for link, (forward, backward) in plan.travel.reshards.items():
        back = "" if backward is None else f", gradient {format_seconds(backward.seconds)} back"
        skip = " (long skip)" if link.target > link.source + 1 else ""
        lines.append(
            f"{what} {link.source} -> {link.target}: {link.tensor} "
            f"{format_bytes(forward.spec.bytes)} by {forward.strategy} "
            f"{forward.source.nd} -> {forward.target.nd}, {format_seconds(forward.seconds)} "
            f"(at least {format_seconds(forward.bound_s)}){back}{skip}"
        )
    for name, stages in plan.travel.shared_params.items():
        lines.append(
            f"parameter {name} is held by {what}s {', '.join(map(str, stages))}; "
            "their gradients are added up once a step"
        )
    for n, (stage, first) in enumerate(zip(plan.stages, plan.same_as, strict=True)):
        own = stage.plan.explain() if first == n else f"the plan of {what} {first}"
        lines += ["", f"{what} {n}", own]
    return "\n".join(lines)


def _bubble_without_transfers(plan: StagedFigures) -> float:
    costs = plan.costs
    free = Costs(costs.forward, costs.backward, costs.weight, {}, {})
    return simulate(plan.schedule, free).bubble
