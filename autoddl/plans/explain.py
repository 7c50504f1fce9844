"""A plan in words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..cost.savings import Saving
from ..graph import batch_norm
from ..graph.graph import Graph
from ..graph.rows import find_rows
from ..plans.figures import figures
from ..plans.stage_figures import stage_figures
from .format import (
    LayerText,
    extrapolation_text,
    format_bytes,
    format_seconds,
    layer_rows,
    saving_text,
    savings_lines,
    timed_text,
    unfit_text,
)
from .plan import Plan
from .records import PlannedBaseline, PlannedLayer
from .schedule.costs import Costs
from .schedule.simulate import simulate
from .stage import StagePlan

_PRECISION_TEXT = {
    "float16": "; float16 with float32 master weights in the optimizer, and loss scaling"
}
_ENDS = {"done": "", "budget": " until its budget ended", "interrupted": " until interrupted"}


def explain(plan: Plan, layer: str | None = None) -> str:
    """The whole plan: its cost, where the bytes go, each layer's choice with the next best.

    Of several stages: the pipeline, then each stage; stages with one plan are explained once.

    layer: the name of the one to explain alone, step by step. ValueError if no layer has that name
    """
    if layer is not None:
        return explain_layer(plan, layer)
    if len(plan.stages) == 1:
        return _stage_text(plan.stages[0], plan.baselines)
    lines = pipeline_lines(plan)
    what = "stage" if plan.chunks == 1 else "part"
    for n, (stage, first) in enumerate(zip(plan.stages, figures(plan).same_as, strict=True)):
        own = _stage_text(stage) if first == n else f"the plan of {what} {first}"
        lines += ["", f"{what} {n}", own]
    return "\n".join(lines)


def pipeline_lines(plan: Plan) -> list[str]:
    """Stages, what travels between them, and how long they wait for each other."""
    predicted = figures(plan)
    timeline = predicted.timeline
    chunks = "" if plan.chunks == 1 else f" of {plan.chunks} parts"
    what = "stage" if plan.chunks == 1 else "part"
    delayed = "" if plan.delay is None else f", weight gradients {plan.delay} late"
    lines = [
        f"{plan.graph.name} on {plan.cluster}, batch {plan.batch} in "
        f"{plan.micro_batches} micro-batches, {plan.num_stages} stages{chunks}, "
        f"{plan.schedule_name}{delayed}",
        f"predicted {format_seconds(predicted.iteration_s)} a step: bubble {timeline.bubble:.1%} "
        f"(transfers in no time: {_bubble_without_transfers(plan):.1%})",
    ]
    lines += rows_lines(plan.graph)
    for n, stage in enumerate(plan.stages):
        price, held = predicted.prices[n], predicted.schedule.stash[n % plan.num_stages]
        memory = predicted.memory_bytes[n % plan.num_stages]
        whole = "" if plan.chunks == 1 else f" of stage {n % plan.num_stages}"
        lines.append(
            f"{what} {n}: layers {stage.first}-{stage.last - 1} on {stage.place}: "
            f"forward {format_seconds(price.forward_s)}, "
            f"backward {format_seconds(price.backward_s)}, "
            f"once {format_seconds(price.once_s)}; "
            f"memory{whole} {format_bytes(memory)} with {held} micro-batches in flight"
        )
    for link, (forward, backward) in predicted.travel.reshards.items():
        back = "" if backward is None else f", gradient {format_seconds(backward.seconds)} back"
        skip = " (long skip)" if link.target > link.source + 1 else ""
        lines.append(
            f"{what} {link.source} -> {link.target}: {link.tensor} "
            f"{format_bytes(forward.spec.bytes)} by {forward.strategy} "
            f"{forward.source.nd} -> {forward.target.nd}, {format_seconds(forward.seconds)} "
            f"(at least {format_seconds(forward.bound_s)}){back}{skip}"
        )
    for name, stages in predicted.travel.shared_params.items():
        lines.append(
            f"parameter {name} is held by {what}s {', '.join(map(str, stages))}; "
            "their gradients are added up once a step"
        )
    return lines


def _bubble_without_transfers(plan: Plan) -> float:
    predicted = figures(plan)
    costs = predicted.pass_costs
    free = Costs(costs.forward, costs.backward, costs.weight, {}, {})
    return simulate(predicted.schedule, free).bubble


def _stage_text(plan: StagePlan, baselines: Sequence[PlannedBaseline] = ()) -> str:
    """One mesh: its cost, where the bytes go, each layer's choice with the next best."""
    predicted = stage_figures(plan)
    cost, cluster = predicted.cost, plan.cluster
    rounds = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    precision = _PRECISION_TEXT.get(plan.precision, "")
    share = cost.communication_s / cost.iteration_s if cost.iteration_s else 0.0
    limit = format_bytes(plan.memory_limit_bytes)
    most = predicted.peak_bytes
    peak = f", {format_bytes(most)} at the fullest moment" if most else ""
    nic, intra = cost.nic_bytes, cost.intra_bytes
    saved = saved_text(plan)
    lines = [
        f"{plan.graph.name} on {cluster}: a batch of {plan.batch}{rounds}{precision}",
        f"predicted {format_seconds(cost.iteration_s)} an iteration: "
        f"{format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication ({share:.0%})",
        *rows_lines(plan.graph),
        f"memory {format_bytes(cost.memory_bytes)} of {limit} a device{peak}",
        *savings_lines(plan.micro_batches, predicted.savings),
        f"through each host's NIC {format_bytes(nic.total)} "
        f"(forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}); inside a host, each device "
        f"{format_bytes(intra.total)}",
        *([saved] if saved else []),
        _certificate(plan),
        *_baseline_lines(baselines, cost.iteration_s),
    ]
    if cluster.num_devices > 1 and cost.communication_s == 0:
        lines.append(
            "every device does the whole work: by the prices of this machine any split of so small "
            "a model costs more time than it saves"
        )
    if predicted.extrapolated:
        lines.append(extrapolation_text(predicted.extrapolated))
    if predicted.timed.computing:
        lines.append(timed_text(predicted.timed))
    lines.append("")
    for row in layer_rows(layer_texts(plan)):
        times = f" (x{row.count})" if row.count > 1 else ""
        together, each = (" together", "each: ") if row.count > 1 else ("", "")
        lines += [
            f"{row.name}{times}  {row.layer.op}  {row.layer.topology}",
            f"    {row.layer.signature}",
            f"    {format_seconds(row.cost.compute_s)} computation, "
            f"{format_seconds(row.cost.communication_s)} communication, "
            f"{format_bytes(row.cost.memory_bytes)}{together}; {each}{_next_best(plan, row.layer)}",
            *([f"    {each}{row.storage}"] if row.storage else []),
        ]
    return "\n".join(lines)


def rows_lines(graph: Graph) -> list[str]:
    """What keeps the batch whole, and what BatchNorm takes its statistics of."""
    lines = [text] if (text := batch_norm.text(graph)) else []
    meeting = None if graph.is_stage else find_rows(graph).meeting
    if meeting is not None and not batch_norm.is_training_norm(meeting):
        lines.append(
            f"rows of the batch meet in {meeting.name} ({meeting.kind}), so it is trained whole"
        )
    return lines


def explain_layer(plan: Plan, name: str) -> str:
    """One layer, step by step. ValueError if no layer has that name."""
    found = [(stage, own) for stage in plan.stages for own in stage.layers if own.name == name]
    if not found:
        names = ", ".join(layer.name for layer in plan.layers[:6])
        raise ValueError(f"the plan has no layer {name!r}; its layers are {names}, ...")
    return "\n\n".join("\n".join(_layer_lines(stage, layer)) for stage, layer in found)


def layer_texts(plan: StagePlan) -> list[LayerText]:
    """The layers with their costs, as the tables of a plan show them."""
    return [
        LayerText(layer, stage_figures(plan).layer_cost(layer), _storage_text(plan, layer))
        for layer in plan.layers
    ]


def saved_text(plan: StagePlan) -> str:
    """What it saves and costs to run blocks again; "" without any."""
    if not plan.recomputed:
        return ""
    predicted, otherwise = stage_figures(plan), stage_figures(plan.keeping_all())
    cost, kept, blocks = predicted.cost, otherwise.cost, len(plan.recomputed)
    peak, kept_peak = predicted.peak_bytes, otherwise.peak_bytes
    fullest = ""
    if peak is not None and kept_peak is not None:
        fullest = (
            f" (at the fullest moment {format_bytes(peak)} instead of {format_bytes(kept_peak)})"
        )
    return (
        f"{blocks} block{'' if blocks == 1 else 's'} keep only their inputs and run forward again "
        f"before their backward pass: memory {format_bytes(cost.memory_bytes)} instead of "
        f"{format_bytes(kept.memory_bytes)}{fullest}, for "
        f"{format_seconds(cost.iteration_s - kept.iteration_s)} more "
        f"({format_seconds(cost.compute_s - kept.compute_s)} computation, "
        f"{format_seconds(cost.communication_s - kept.communication_s)} communication)"
    )


def _certificate(plan: StagePlan) -> str:
    """How good the plan is: in the searched space, and against any algorithm for its products."""
    predicted = stage_figures(plan)
    algorithm = plan.search.algorithm + _ENDS.get(plan.search.end, "")
    gap, products = predicted.gap, predicted.product_bytes
    if gap is None:
        found = f"found by {algorithm}, which proves nothing about better plans"
    elif gap == 0:
        found = f"found by {algorithm}; optimal in this space for its micro-batches (gap 0)"
    else:
        found = (
            f"found by {algorithm}; no plan in this space with as many micro-batches is more than "
            f"{gap:.2%} faster"
        )
    if products.ratio is None:
        return found
    part = ""
    if products.divided < products.products:
        part = f" ({products.divided} of its {products.products} matrix products count for this)"
    moved, least = format_bytes(products.moved), format_bytes(products.least)
    return (
        f"{found}; moves {products.ratio:.3g} times the least that any algorithm could: each "
        f"device receives {moved}, and at least {least}{part}"
    )


def _baseline_lines(baselines: Sequence[PlannedBaseline], iteration_s: float) -> list[str]:
    """The known schemes beside the plan, the closest first, one line each."""
    if not baselines:
        return []
    lines = ["known schemes, each on its best topology:"]
    for baseline in sorted(baselines, key=lambda b: b.iteration_s or float("inf")):
        if baseline.iteration_s is None:
            lines.append(f"    {baseline.name} ({baseline.topology}): {unfit_text(baseline)}")
            continue
        times = baseline.iteration_s / iteration_s if iteration_s else 1.0
        rounds = "" if baseline.micro_batches == 1 else f" in {baseline.micro_batches} rounds"
        lines.append(
            f"    {baseline.name} ({baseline.topology}){rounds}: "
            f"{format_seconds(baseline.iteration_s)}, {times:.2f} times as long"
        )
    return lines


def _next_best(plan: StagePlan, layer: PlannedLayer) -> str:
    if not layer.alternative:
        return "no other topology divides this layer"
    extra, iteration_s = layer.alternative_extra_s, stage_figures(plan).cost.iteration_s
    share = extra / iteration_s if iteration_s else 0.0
    return f"next best {layer.alternative}: {format_seconds(extra)} more ({share:+.1%})"


def _storage_text(plan: StagePlan, layer: PlannedLayer) -> str:
    """How a layer stores its parameters; "" if whole."""
    found = stage_figures(plan).savings
    stages = {found.stages[op] for op in layer.ops if op in found.stages}
    if not stages:
        return ""
    savings = [found.by_op[op] for op in layer.ops if op in found.by_op]
    every = Saving(sum(s.saved_bytes for s in savings), sum(s.extra_s for s in savings))
    named = "/".join(map(str, sorted(stages)))
    return f"parameters split, ZeRO stage {named}: {saving_text(every)}"


def _layer_lines(plan: StagePlan, layer: PlannedLayer) -> list[str]:
    """One layer: its placements, each redistribution step, and what they cost."""
    predicted = stage_figures(plan)
    cost, storage = predicted.layer_cost(layer), _storage_text(plan, layer)
    nic = cost.nic_bytes
    return [
        f"{layer.name}  {layer.op}  {layer.topology}",
        f"  {layer.signature}",
        f"  {format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication of "
        f"{format_seconds(predicted.cost.iteration_s)} an iteration; "
        f"{format_bytes(cost.memory_bytes)} a device",
        f"  NIC: forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}",
        f"  {_next_best(plan, layer)}",
        *([f"  {storage}"] if storage else []),
        *_edge_lines(plan, layer),
    ]


def _edge_lines(plan: StagePlan, layer: PlannedLayer) -> list[str]:
    """Every redistribution into the operators of `layer`."""
    lines = []
    for name in layer.ops:
        for index, placement in enumerate(plan.ops[name].ins):
            edge = plan.edges.get((name, index))
            if edge is None or not (edge.forward or edge.backward):
                continue
            lines.append(f"  input {index} of {name} -> {placement}")
            if edge.forward:
                lines.append(f"    forward   {'; '.join(map(str, edge.forward))}")
            if edge.backward:
                lines.append(f"    backward  {'; '.join(map(str, edge.backward))}")
    return lines
