"""A plan's figures in words: what `explain` gathers for the texts of `autoddl.explain`."""

from __future__ import annotations

import dataclasses

from ..explain import (
    EdgeText,
    LayerText,
    certificate_text,
    layer_text,
    plan_text,
    recomputation_text,
    storage_text,
)
from ..planned import PlannedLayer
from .figures import PlanFigures


def explain(plan: PlanFigures) -> str:
    """The whole plan."""
    return plan_text(
        plan.graph.name,
        plan.cluster,
        plan.batch,
        plan.micro_batches,
        plan.cost,
        plan.memory_limit_bytes,
        layer_texts(plan),
        certificate_text(plan.search.algorithm, plan.search.end, plan.gap, plan.product_bytes),
        plan.savings,
        plan.baselines,
        plan.extrapolated,
        saved_text(plan),
        plan.precision,
        plan.timed,
        plan.peak_bytes,
    )


def explain_layer(plan: PlanFigures, name: str) -> str:
    """One layer, step by step. ValueError if no layer has that name."""
    found = [layer for layer in plan.layers if layer.name == name]
    if not found:
        names = ", ".join(layer.name for layer in plan.layers[:6])
        raise ValueError(f"the plan has no layer {name!r}; its layers are {names}, ...")
    return "\n\n".join(
        layer_text(
            layer,
            plan.layer_cost(layer),
            plan.cost,
            _edge_texts(plan, layer),
            _storage_text(plan, layer),
        )
        for layer in found
    )


def layer_texts(plan: PlanFigures) -> list[LayerText]:
    """The layers with their costs, as the tables of a plan show them."""
    return [
        LayerText(layer, plan.layer_cost(layer), _storage_text(plan, layer))
        for layer in plan.layers
    ]


def saved_text(plan: PlanFigures) -> str:
    """What recomputation saves and costs; "" without any."""
    if not plan.recomputed:
        return ""
    kept = dataclasses.replace(plan, recomputed=())
    return recomputation_text(
        len(plan.recomputed), plan.cost, kept.cost, (plan.peak_bytes, kept.peak_bytes)
    )


def _storage_text(plan: PlanFigures, layer: PlannedLayer) -> str:
    found = plan.savings
    return storage_text(
        [found.stages[op] for op in layer.ops if op in found.stages],
        [found.by_op[op] for op in layer.ops if op in found.by_op],
    )


def _edge_texts(plan: PlanFigures, layer: PlannedLayer) -> list[EdgeText]:
    """Every redistribution into the operators of `layer`."""
    texts = []
    for name in layer.ops:
        for index, placement in enumerate(plan.ops[name].ins):
            edge = plan.edges.get((name, index))
            if edge is not None and (edge.forward or edge.backward):
                forward, backward = map(str, edge.forward), map(str, edge.backward)
                texts.append(EdgeText(name, index, str(placement), [*forward], [*backward]))
    return texts
