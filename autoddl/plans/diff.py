"""Where two plans of one model differ, layer by layer, and what each difference costs.

A layer differs if the split of its heavy operator, that one's placements, the steps of the
redistributions into it, or the placement of its stored parameters differ. What the difference costs
is the layer's account in the second plan less that in the first (seconds, bytes, memory of one
iteration on one device); the differences of all layers, and of what computation hides of the
communication, add up to that of the plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cost.account import Cost
from ..graph.placed import PlannedEdge
from ..plans.figures import figures
from .plan import Plan
from .report.contents import titles
from .report.layers import KEEPS
from .report.machine import estimates_notes
from .report.notation import legend
from .report.sections import Column, Figure, Figures, Report, Row, Table
from .report.stage_sections import BESIDE
from .stage import PlannedLayer
from .stage_figures import stage_figures

_OF_STAGES = (
    "of a plan in stages a step and what it needs are the whole's, all between them the busiest "
    "stage's; layers are those of all stages, which work at the same time"
)
COLUMNS = (
    Column("name", "layer"),
    Column("differs_in", "differs in"),
    Column("split_a", "a", "split", notation="words"),
    Column("split_b", "b", "split", notation="words"),
    Column("topology_a", "a", "topology", notation="sbp"),
    Column("topology_b", "b", "topology", notation="sbp"),
    Column("seconds", "time", "more_seconds", adds=True),
    Column("compute_s", "comput.", "more_seconds", adds=True),
    Column("communication_s", "comm.", "more_seconds", adds=True),
    Column("nic_bytes", "NIC", "more_bytes", adds=True),
    Column("intra_bytes", "in host", "more_bytes", adds=True),
    Column("memory_bytes", "keeps", "more_bytes", adds=True),
)


@dataclass(frozen=True)
class LayerDifference:
    """A layer in both plans.

    what: "split" of the work, "placement" of the tensors on the axes of the mesh, "moves" between
          placements, "storage" of parameters; () if only the costs differ
    """

    what: tuple[str, ...]
    first: PlannedLayer
    second: PlannedLayer
    costs: tuple[Cost, Cost]

    @property
    def seconds(self) -> float:
        """How much longer the layer takes in the second plan."""
        return self.costs[1].iteration_s - self.costs[0].iteration_s


def differences(first: Plan, second: Plan) -> tuple[LayerDifference, ...]:
    """The layers in which the plans differ, those that cost the most first.

    Raises ValueError if the plans are for different models.
    """
    try:
        first.check_model(second.graph)
    except ValueError as error:
        raise ValueError(f"only plans of one model can be compared: {error}") from error
    others = {layer.name: layer for layer in second.layers}
    found = []
    for layer in first.layers:
        other = others[layer.name]
        what = _what(first, second, layer, other)
        costs = figures(first).layer_cost(layer), figures(second).layer_cost(other)
        if what or costs[0] != costs[1]:
            found.append(LayerDifference(what, layer, other, costs))
    return tuple(sorted(found, key=lambda d: -abs(d.seconds)))


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


def report(first: Plan, second: Plan) -> Report:
    """The totals of both, then the layers that differ, the costliest difference first."""
    found = differences(first, second)
    rows: list[Row] = [
        {
            "name": difference.first.name,
            "differs_in": ", ".join(difference.what) or "costs",
            "split_a": difference.first.split,
            "split_b": difference.second.split,
            "topology_a": difference.first.topology,
            "topology_b": difference.second.topology,
            "signature_a": difference.first.signature,
            "signature_b": difference.second.signature,
            **cost_differences(*difference.costs),
        }
        for difference in found
    ]
    if hidden_s := _hidden_s(second) - _hidden_s(first):
        others = {column.key: 0.0 for column in COLUMNS if column.adds}
        rows.append({"name": BESIDE, **others, "seconds": -hidden_s})
    told = (layer.split for d in found for layer in (d.first, d.second))
    title = "Layers that differ: b less a"
    layers = Table(
        "layers", title, COLUMNS, tuple(rows), total="all", folds=True, legend=legend(told)
    )
    estimates = (note for plan in (first, second) for note in estimates_notes(plan.cluster))
    alike = () if found else ("the plans are alike",)
    several = (_OF_STAGES,) if first.num_stages + second.num_stages > 2 else ()
    notes = (*alike, *several, KEEPS, *dict.fromkeys(estimates))
    heading = Figures("", "", (Figure("model", "", first.graph.name),))
    return Report(f"{first.graph.name}: two plans", "", (heading, _totals(first, second, notes),
                                                         layers))  # fmt: skip


def _hidden_s(plan: Plan) -> float:
    """Of all stages, as the layers are those of all."""
    return sum(stage_figures(stage).cost.hidden_s for stage in plan.stages)


def _totals(first: Plan, second: Plan, notes: tuple[str, ...]) -> Table:
    """Of the whole plans; the stages of one, if it has several, wait for each other."""
    a, b = figures(first), figures(second)
    more = cost_differences(a.cost, b.cost)
    more["seconds"] = b.iteration_s - a.iteration_s
    more["needed_bytes"] = max(b.needed_bytes) - max(a.needed_bytes)
    rows: list[Row] = [
        {
            "name": name,
            "plan": f"{name}: {' '.join(titles(known.plan))}",
            "seconds": known.iteration_s,
            "compute_s": known.cost.compute_s,
            "communication_s": known.cost.communication_s,
            "hidden_s": known.cost.hidden_s or None,
            "nic_bytes": known.cost.nic_bytes.total,
            "intra_bytes": known.cost.intra_bytes.total,
            "memory_bytes": known.cost.memory_bytes,
            "needed_bytes": max(known.needed_bytes),
        }
        for name, known in (("a", a), ("b", b))
    ]
    hidden_s = b.cost.hidden_s - a.cost.hidden_s
    rows.append({"name": "difference", "plan": "b less a", **more, "hidden_s": hidden_s or None})
    compute, moved, *sizes = COLUMNS[7:]
    columns = (
        Column("plan", "plan"),
        Column("seconds", "a step", "seconds"),
        *(Column(column.key, column.title, "seconds") for column in (compute, moved)),
        Column("hidden_s", "hidden", "seconds"),
        *(Column(column.key, column.title, "bytes") for column in sizes),
        Column("needed_bytes", "needs", "bytes"),
    )
    return Table("plans", "Plans", columns, tuple(rows), by_name=True, notes=notes)


def _what(first: Plan, second: Plan, layer: PlannedLayer, other: PlannedLayer) -> tuple[str, ...]:
    what = []
    if layer.split != other.split:
        what.append("split")
    if layer.signature != other.signature:
        what.append("placement")
    if _steps(first, layer) != _steps(second, other):
        what.append("moves")
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
