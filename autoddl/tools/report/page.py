"""The plan at a glance: one HTML page with everything in it, nothing fetched from elsewhere.

`page` gives the text, `view` the numbers and words that the template (`page.html.j2`) lays out.
Bars are as wide as their values are large, per section.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from ...cost.account import Cost
from ...plans import Plan, StagePlan
from ...plans.explain import layer_texts, pipeline_lines, rows_lines
from ...plans.figures import figures
from ...plans.format import (
    LayerRow,
    format_bytes,
    format_seconds,
    layer_rows,
    unfit_text,
    without_numbers,
)
from ...plans.records import PlannedBaseline, PlannedLayer
from ...plans.stage_figures import stage_figures
from ...sbp.collectives import Step, path_bytes, work_of
from ...sbp.placement import NdSbp
from .tables import short_signature

LETTERS = {
    "S0": "rows split",
    "B": "columns split",
    "S1": "summed dim split",
    "R": "repeated",
}
CAUSES = ("forward", "backward", "gradient_sync")
CAUSE_NAMES = {"forward": "forward", "backward": "backward", "gradient_sync": "gradients"}


def page(plan: Plan) -> str:
    """The page's HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("autoddl.tools", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    return template.render(**view(plan))


def view(plan: Plan) -> dict[str, Any]:
    """What the template needs."""
    predicted = figures(plan)
    cost = predicted.cost
    share = cost.communication_s / cost.iteration_s if cost.iteration_s else 0.0
    parts = f" in {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    closest, nearest = [], plan.closest_baseline
    if nearest is not None and nearest.iteration_s is not None:
        name, seconds = nearest.name, format_seconds(nearest.iteration_s)
        closest.append((f"closest known scheme, {name}", seconds))
    return {
        "title": f"{plan.graph.name} on {plan.cluster}",
        "subtitle": "; ".join(
            [f"batch {plan.batch}{parts}, {plan.optimizer}", *rows_lines(plan.graph)]
        ),
        "tiles": [
            ("an iteration", format_seconds(predicted.iteration_s), "predicted"),
            ("communication", f"{share:.0%}", format_seconds(cost.communication_s)),
            (
                "memory a device",
                format_bytes(max(predicted.memory_bytes)),
                f"of {format_bytes(plan.memory_limit_bytes)}",
            ),
            (
                "through each NIC",
                format_bytes(cost.nic_bytes.total),
                f"inside a node {format_bytes(cost.intra_bytes.total)} a device",
            ),
        ],
        "pipeline": pipeline_lines(plan) if len(plan.stages) > 1 else [],
        "schemes": _schemes(plan),
        "letters": LETTERS,
        "stages": [_stage(plan, number) for number in range(len(plan.stages))],
        "closest": closest,
    }


def _stage(plan: Plan, number: int) -> dict[str, Any]:
    """The sections of one stage. name: "" if it is the only one"""
    stage, several = plan.stages[number], len(plan.stages) > 1
    return {
        "name": f"Stage {number}, {stage.place}: " if several else "",
        "number": f"-{number}" if several else "",
        "time": _time_parts(stage_figures(stage).cost),
        "memory": _memory(stage),
        "layers": _layers(stage),
        "certificate": _certificate(stage),
    }


def _time_parts(cost: Cost) -> list[dict[str, Any]]:
    parts = [("computation", "compute", cost.compute_s)]
    for link, traffic in (("between nodes", cost.inter_s), ("inside a node", cost.intra_s)):
        kind = "inter" if link == "between nodes" else "intra"
        for cause in CAUSES:
            parts.append(
                (f"{link}, {CAUSE_NAMES[cause]}", f"{kind}-{cause}", getattr(traffic, cause))
            )
    total = cost.iteration_s
    return [
        {
            "name": name,
            "class": style,
            "text": format_seconds(seconds),
            "percent": _percent(seconds, total),
        }
        for name, style, seconds in parts
        if seconds > 0
    ]


def _schemes(plan: Plan) -> list[dict[str, Any]]:
    """Ours and the known schemes, the fastest first; bars end at the slowest that fits."""
    predicted = figures(plan)
    cost = predicted.cost
    rows: list[tuple[float, PlannedBaseline | None]] = [(predicted.iteration_s, None)]
    rows += [(b.iteration_s, b) for b in plan.baselines if b.iteration_s is not None]
    longest = max(seconds for seconds, _ in rows)
    found = []
    for seconds, baseline in sorted(rows, key=lambda row: row[0]):
        communication = (
            cost.communication_s if baseline is None else baseline.communication_s or 0.0
        )
        times = seconds / predicted.iteration_s if predicted.iteration_s else 1.0
        found.append(
            {
                "name": "this plan" if baseline is None else baseline.name,
                "detail": "" if baseline is None else baseline.topology,
                "ours": baseline is None,
                "compute": _percent(seconds - communication, longest),
                "communication": _percent(communication, longest),
                "text": format_seconds(seconds)
                + ("" if baseline is None else f" ({times:.2f} times as long)"),
                "why": "",
            }
        )
    for baseline in plan.baselines:
        if not baseline.fits:
            found.append(
                {
                    "name": baseline.name,
                    "detail": baseline.topology,
                    "ours": False,
                    "compute": 0.0,
                    "communication": 0.0,
                    "text": "",
                    "why": unfit_text(baseline),
                }
            )
    return found


def _memory(plan: StagePlan) -> dict[str, Any]:
    """Bytes of a device by kind, in percent of the larger of limit and need."""
    predicted = stage_figures(plan)
    trained = sum(predicted.costs[op.name].memory_bytes for op in plan.graph.params)
    total, limit = predicted.cost.memory_bytes, plan.memory_limit_bytes
    scale = max(total, limit if math.isfinite(limit) else total)
    kinds = (
        ("parameters, gradients, optimizer state", "parameters", trained),
        ("activations and copies", "activations", total - trained),
    )
    return {
        "parts": [
            {
                "name": name,
                "class": style,
                "text": format_bytes(size),
                "percent": _percent(size, scale),
            }
            for name, style, size in kinds
        ],
        "limit_percent": _percent(limit, scale),
        "limit": format_bytes(limit),
        "share": f"{total / limit:.0%}",
        "fits": total <= limit,
    }


def _layers(plan: StagePlan) -> list[dict[str, Any]]:
    rows = layer_rows(layer_texts(plan), lambda layer: _moves_shown(plan, layer))
    slowest = max((row.cost.iteration_s for row in rows), default=0.0)
    return [_layer(plan, row, slowest) for row in rows]


def _moves_shown(plan: StagePlan, layer: PlannedLayer) -> str:
    """The redistributions of a layer as equal layers share them."""
    moves = _moves(plan, layer.ops)
    return str([{**move, "what": without_numbers(move["what"])} for move in moves])


def _layer(plan: StagePlan, row: LayerRow, slowest: float) -> dict[str, Any]:
    cost, layer = row.cost, row.layer
    moves = _moves(plan, layer.ops)
    extra = layer.alternative_extra_s
    return {
        "name": row.name,
        "count": row.count,
        "op": layer.op,
        "topology": topology_parts(layer.topology),
        "signature": short_signature(layer.signature),
        "compute": _percent(cost.compute_s, slowest),
        "communication": _percent(cost.communication_s, slowest),
        "time": format_seconds(cost.iteration_s),
        "times": f"{format_seconds(cost.compute_s)} computation, "
        f"{format_seconds(cost.communication_s)} communication",
        "memory": format_bytes(cost.memory_bytes),
        "moves": moves,
        "collectives": sum(len(move["steps"]) for move in moves),
        "nic": format_bytes(cost.nic_bytes.total),
        "intra": format_bytes(cost.intra_bytes.total),
        "next_best": f"{layer.alternative}: {format_seconds(extra)} more"
        if layer.alternative
        else "",
    }


def topology_parts(topology: str) -> list[dict[str, Any]]:
    """The letters of `(S0:(4,1), B:(8,1), S1:(2,1))` with more than one device.

    Each is as wide as the logarithm of its devices, so that widths add up to the whole mesh.
    """
    found = [
        (letter, int(nodes), int(gpus))
        for letter, nodes, gpus in re.findall(r"(\w+):\((\d+),(\d+)\)", topology)
    ]
    whole = sum(math.log2(nodes * gpus) for _, nodes, gpus in found)
    return [
        {
            "letter": letter,
            "devices": nodes * gpus,
            "text": f"{letter} {nodes}x{gpus}" if gpus > 1 and nodes > 1 else
            f"{letter} {nodes * gpus}",
            "title": f"{LETTERS[letter]} over {nodes} x {gpus} devices",
            "percent": _percent(math.log2(nodes * gpus), whole),
        }
        for letter, nodes, gpus in found
        if nodes * gpus > 1
    ]  # fmt: skip


def _moves(plan: StagePlan, ops: Sequence[str]) -> list[dict[str, Any]]:
    """The redistributions into a layer: from where to where, by which collectives and bytes."""
    found = []
    for op in (op for op in plan.graph.ops if op.name in set(ops)):
        name = op.name
        for index, tensor in enumerate(op.inputs):
            edge = plan.edges.get((name, index))
            if edge is None:
                continue
            wanted = plan.ops[name].ins[index]
            producer = plan.graph.producers[tensor]
            given = plan.ops[producer.name].outs[producer.outputs.index(tensor)]
            ways = [("forward", given, wanted, edge.forward)]
            back = plan.ops[name].grad_ins[index]
            kept = plan.ops[producer.name].grad_outs[producer.outputs.index(tensor)]
            if back is not None and kept is not None:
                ways.append(("backward", back, kept, edge.backward))
            for way, source, target, steps in ways:
                texts = _step_texts(plan, tensor, source, steps)
                if texts:
                    found.append(
                        {
                            "way": way,
                            "what": producer.name if producer.kind == "param" else tensor,
                            "path": short_signature(f"{source} -> {target}"),
                            "steps": texts,
                        }
                    )
    return found


def _step_texts(plan: StagePlan, tensor: str, source: NdSbp, steps: Sequence[Step]) -> list[str]:
    """`all-gather over 4 nodes, 12.6 MB a device` for each collective."""
    texts = []
    spec = plan.graph.tensors[tensor].spec
    for step, before, after in path_bytes(spec, steps, source, plan.mesh):
        if step.is_free:
            continue
        nodes, gpus = plan.mesh.topology(step.axes)
        group = f"{nodes} nodes" if nodes > 1 else f"{gpus} devices of a node"
        if nodes > 1 and gpus > 1:
            group += f" x {gpus}"
        sent = work_of(step, plan.mesh, plan.cluster.collectives).device * max(before, after)
        texts.append(f"{step.way.replace('_', '-')} over {group}, {format_bytes(sent)} a device")
    return texts


def _certificate(plan: StagePlan) -> list[tuple[str, str]]:
    """What is known about better plans."""
    predicted = stage_figures(plan)
    found = [("found by", plan.search.algorithm)]
    bound, gap, products = plan.search.lower_bound_s, predicted.gap, predicted.product_bytes
    if bound is not None and gap is not None:
        found.append(("no plan in the searched space takes less than", format_seconds(bound)))
        proven = "optimal in that space" if gap == 0 else f"a plan {gap:.2%} faster"
        found.append(("proven", proven if gap == 0 else f"at most {proven} exists"))
    if products.ratio is not None:
        found.append(("each device receives for the products", format_bytes(products.moved)))
        found.append(("any algorithm needs at least", format_bytes(products.least)))
    return found


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 4) if whole > 0 and math.isfinite(part) else 0.0
