"""Where two plans of one model differ, layer by layer, and what each difference costs.

A layer differs if its topology, the placements of its heavy operator, the steps of the
redistributions into it, or the placement of its stored parameters differ. What the difference costs
is the layer's account in the second plan less that in the first (seconds, bytes, memory of one
iteration on one device); the differences of all layers add up to that of the plans.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..cost.account import Cost
from ..graph.placed import PlannedEdge
from ..plans.figures import figures
from . import Plan
from .records import PlannedLayer


@dataclass(frozen=True)
class LayerDifference:
    """Layers that differ alike: `name` has `*` for their numbers; costs are of all of them.

    what: "topology", "signature", "steps", "storage"; () if only the costs differ
    """

    name: str
    count: int
    what: tuple[str, ...]
    first: PlannedLayer
    second: PlannedLayer
    costs: tuple[Cost, Cost]

    @property
    def seconds(self) -> float:
        """How much longer the layers take in the second plan."""
        return self.costs[1].iteration_s - self.costs[0].iteration_s

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "count": self.count,
            "differs_in": list(self.what),
            "topology": [self.first.topology, self.second.topology],
            "signature": [self.first.signature, self.second.signature],
            **cost_differences(*self.costs),
        }


def differences(first: Plan, second: Plan) -> tuple[LayerDifference, ...]:
    """The layers in which the plans differ, those that cost the most first.

    Raises ValueError if the plans are for different models.
    """
    try:
        first.check_model(second.graph)
    except ValueError as error:
        raise ValueError(f"only plans of one model can be compared: {error}") from error
    others = {layer.name: layer for layer in second.layers}
    found: dict[tuple[Any, ...], LayerDifference] = {}
    for layer in first.layers:
        other = others[layer.name]
        what = _what(first, second, layer, other)
        costs = figures(first).layer_cost(layer), figures(second).layer_cost(other)
        if not what and costs[0] == costs[1]:
            continue
        pattern = re.sub(r"\d+", "*", layer.name)
        alike = (layer.topology, other.topology, layer.signature, other.signature)
        key = pattern, what, alike, f"{costs[0].iteration_s:.6g} {costs[1].iteration_s:.6g}"
        before = found.get(key)
        if before is None:
            found[key] = LayerDifference(layer.name, 1, what, layer, other, costs)
        else:
            for total, cost in zip(before.costs, costs, strict=True):
                total.add(cost)
            found[key] = LayerDifference(
                pattern, before.count + 1, what, before.first, before.second, before.costs
            )
    return tuple(sorted(found.values(), key=lambda d: -abs(d.seconds)))


def cost_differences(first: Cost, second: Cost) -> dict[str, float]:
    """How much more the second costs."""
    return {
        "seconds": second.iteration_s - first.iteration_s,
        "compute_s": second.compute_s - first.compute_s,
        "communication_s": second.communication_s - first.communication_s,
        "nic_bytes": second.nic_bytes.total - first.nic_bytes.total,
        "intra_bytes": second.intra_bytes.total - first.intra_bytes.total,
        "memory_bytes": second.memory_bytes - first.memory_bytes,
    }


def total_difference(first: Plan, second: Plan) -> dict[str, float]:
    """How much more the second plan costs; its stages, if it has several, wait for each other."""
    more = cost_differences(figures(first).cost, figures(second).cost)
    return {
        **more,
        "seconds": figures(second).iteration_s - figures(first).iteration_s,
    }


def to_json(first: Plan, second: Plan) -> dict[str, Any]:
    """The whole difference as one JSON object."""
    return {
        "model": first.graph.name,
        "clusters": [str(first.cluster), str(second.cluster)],
        "micro_batches": [first.micro_batches, second.micro_batches],
        "iteration_s": [figures(first).iteration_s, figures(second).iteration_s],
        "memory_bytes": [
            figures(first).cost.memory_bytes,
            figures(second).cost.memory_bytes,
        ],
        "difference": total_difference(first, second),
        "layers": [difference.to_json() for difference in differences(first, second)],
    }


def _what(first: Plan, second: Plan, layer: PlannedLayer, other: PlannedLayer) -> tuple[str, ...]:
    what = []
    if layer.topology != other.topology:
        what.append("topology")
    if layer.signature != other.signature:
        what.append("signature")
    if _steps(first, layer) != _steps(second, other):
        what.append("steps")
    if _storage(first, layer) != _storage(second, other):
        what.append("storage")
    return tuple(what)


def _steps(plan: Plan, layer: PlannedLayer) -> list[tuple[object, ...]]:
    stage = plan.stage_of(layer)
    found = []
    for name in layer.ops:
        for index in range(len(stage.ops[name].ins)):
            edge = stage.edges.get((name, index), PlannedEdge(name, index))
            found.append((name, index, edge.forward, edge.backward))
    return found


def _storage(plan: Plan, layer: PlannedLayer) -> list[tuple[str, str]]:
    stage = plan.stage_of(layer)
    params = {op.name for op in stage.graph.params}
    return [(name, str(stage.ops[name].outs[0])) for name in layer.ops if name in params]
