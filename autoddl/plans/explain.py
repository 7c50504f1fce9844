"""A plan in words and numbers."""

from __future__ import annotations

import dataclasses

from ..cost.savings import Saving
from ..graph import batch_norm
from ..graph.graph import Graph
from ..graph.placed import PlannedLayer
from ..graph.rows import find_rows
from .figures import PlanFigures
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

_PRECISION_TEXT = {
    "float16": "; float16 with float32 master weights in the optimizer, and loss scaling"
}
_ENDS = {"done": "", "budget": " until its budget ended", "interrupted": " until interrupted"}


def explain(plan: PlanFigures) -> str:
    """The whole plan: its cost, where the bytes go, each layer's choice with the next best."""
    cost, cluster = plan.cost, plan.cluster
    rounds = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    precision = _PRECISION_TEXT.get(plan.precision, "")
    share = cost.communication_s / cost.iteration_s if cost.iteration_s else 0.0
    limit = format_bytes(plan.memory_limit_bytes)
    peak = f", {format_bytes(plan.peak_bytes)} at the fullest moment" if plan.peak_bytes else ""
    nic, intra = cost.nic_bytes, cost.intra_bytes
    saved = saved_text(plan)
    lines = [
        f"{plan.graph.name} on {cluster}: a batch of {plan.batch}{rounds}{precision}",
        f"predicted {format_seconds(cost.iteration_s)} an iteration: "
        f"{format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication ({share:.0%})",
        *rows_lines(plan.graph),
        f"memory {format_bytes(cost.memory_bytes)} of {limit} a device{peak}",
        *savings_lines(plan.micro_batches, plan.savings),
        f"through each host's NIC {format_bytes(nic.total)} "
        f"(forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}); inside a host, each device "
        f"{format_bytes(intra.total)}",
        *([saved] if saved else []),
        _certificate(plan),
        *_baseline_lines(plan),
    ]
    if cluster.num_devices > 1 and cost.communication_s == 0:
        lines.append(
            "every device does the whole work: by the prices of this machine any split of so small "
            "a model costs more time than it saves"
        )
    if plan.extrapolated:
        lines.append(extrapolation_text(plan.extrapolated))
    if plan.timed.computing:
        lines.append(timed_text(plan.timed))
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


def explain_layer(plan: PlanFigures, name: str) -> str:
    """One layer, step by step. ValueError if no layer has that name."""
    found = [layer for layer in plan.layers if layer.name == name]
    if not found:
        names = ", ".join(layer.name for layer in plan.layers[:6])
        raise ValueError(f"the plan has no layer {name!r}; its layers are {names}, ...")
    return "\n\n".join("\n".join(_layer_lines(plan, layer)) for layer in found)


def layer_texts(plan: PlanFigures) -> list[LayerText]:
    """The layers with their costs, as the tables of a plan show them."""
    return [
        LayerText(layer, plan.layer_cost(layer), _storage_text(plan, layer))
        for layer in plan.layers
    ]


def saved_text(plan: PlanFigures) -> str:
    """What it saves and costs to run blocks again; "" without any."""
    if not plan.recomputed:
        return ""
    kept_plan = dataclasses.replace(plan, recomputed=())
    cost, kept, blocks = plan.cost, kept_plan.cost, len(plan.recomputed)
    peak, kept_peak = plan.peak_bytes, kept_plan.peak_bytes
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


def _certificate(plan: PlanFigures) -> str:
    """How good the plan is: in the searched space, and against any algorithm for its products."""
    algorithm = plan.search.algorithm + _ENDS.get(plan.search.end, "")
    gap, products = plan.gap, plan.product_bytes
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


def _baseline_lines(plan: PlanFigures) -> list[str]:
    """The known schemes beside the plan, the closest first, one line each."""
    if not plan.baselines:
        return []
    iteration_s = plan.cost.iteration_s
    lines = ["known schemes, each on its best topology:"]
    for baseline in sorted(plan.baselines, key=lambda b: b.iteration_s or float("inf")):
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


def _next_best(plan: PlanFigures, layer: PlannedLayer) -> str:
    if not layer.alternative:
        return "no other topology divides this layer"
    extra, iteration_s = layer.alternative_extra_s, plan.cost.iteration_s
    share = extra / iteration_s if iteration_s else 0.0
    return f"next best {layer.alternative}: {format_seconds(extra)} more ({share:+.1%})"


def _storage_text(plan: PlanFigures, layer: PlannedLayer) -> str:
    """How a layer stores its parameters; "" if whole."""
    found = plan.savings
    stages = {found.stages[op] for op in layer.ops if op in found.stages}
    if not stages:
        return ""
    savings = [found.by_op[op] for op in layer.ops if op in found.by_op]
    every = Saving(sum(s.saved_bytes for s in savings), sum(s.extra_s for s in savings))
    named = "/".join(map(str, sorted(stages)))
    return f"parameters split, ZeRO stage {named}: {saving_text(every)}"


def _layer_lines(plan: PlanFigures, layer: PlannedLayer) -> list[str]:
    """One layer: its placements, each redistribution step, and what they cost."""
    cost, storage = plan.layer_cost(layer), _storage_text(plan, layer)
    nic = cost.nic_bytes
    return [
        f"{layer.name}  {layer.op}  {layer.topology}",
        f"  {layer.signature}",
        f"  {format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication of "
        f"{format_seconds(plan.cost.iteration_s)} an iteration; "
        f"{format_bytes(cost.memory_bytes)} a device",
        f"  NIC: forward {format_bytes(nic.forward)}, backward {format_bytes(nic.backward)}, "
        f"gradients {format_bytes(nic.gradient_sync)}",
        f"  {_next_best(plan, layer)}",
        *([f"  {storage}"] if storage else []),
        *_edge_lines(plan, layer),
    ]


def _edge_lines(plan: PlanFigures, layer: PlannedLayer) -> list[str]:
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
