"""What would change a plan's time: faster links, and what else was planned anew for it.

A plan is priced again where that is exact, as on the same devices with faster links: its placements
are held fixed, so that a new plan may gain more. What has to be planned anew, for another batch or
other devices, is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...cluster.link import Link
from ...cluster.spec import Cluster, HostGroup
from ..figures import figures
from ..plan import Plan
from ..stage import COPIES, PlannedLayer
from ..stage_figures import stage_figures
from .sections import Column, Row, Table

LINKS: dict[Literal["inter", "intra"], str] = {
    "inter": "links between hosts twice as fast",
    "intra": "links inside a host twice as fast",
}
_COLUMNS = (
    Column("change", "change"),
    Column("how", "computed for"),
    Column("iteration_s", "a step", "seconds"),
    Column("speed", "times as fast", "times"),
    Column("memory_bytes", "memory", "bytes"),
    Column("repeated", "done again", "share"),
    Column("why_not", "why not"),
)


@dataclass(frozen=True)
class Change:
    """A plan after a change; None with a reason if there is none. is_new: it was planned for it."""

    what: str
    plan: Plan | None
    is_new: bool = False
    why_not: str = ""


def with_faster(cluster: Cluster, link: Literal["inter", "intra"]) -> Cluster:
    """The same machine with links between hosts, or inside them, of twice the bandwidth."""

    def faster(part: Cluster | HostGroup) -> dict[str, Link]:
        old: Link | None = getattr(part, link)  # None: a group without one of its own
        return {link: replace(old, beta_s_per_byte=old.beta_s_per_byte / 2)} if old else {}

    lines = tuple(
        replace(line, s_per_byte=line.s_per_byte / 2)
        if (line.nodes > 1) == (link == "inter")
        else line
        for line in cluster.lines
    )
    groups = tuple(replace(group, **faster(group)) for group in cluster.groups)
    return replace(cluster, **faster(cluster), groups=groups, lines=lines)


def same_plan(plan: Plan) -> Iterator[Change]:
    """The plan as it is, on the links that it uses, made faster."""
    cost = figures(plan).cost
    for link, what in LINKS.items():
        is_there = plan.cluster.nodes > 1 if link == "inter" else plan.cluster.gpus_per_node > 1
        if is_there and (len(plan.stages) > 1 or getattr(cost, f"{link}_s").total > 0):
            yield Change(what, plan.on(with_faster(plan.cluster, link)))


def changes(plan: Plan, anew: Sequence[Change] = ()) -> Table:
    """What each change brings; a change that was planned anew stands below the plan as it is.

    Once if nothing new is faster than that.
    """
    kept = {change.what for change in anew if not change.is_new}
    found = [*(change for change in same_plan(plan) if change.what not in kept), *anew]
    title = "What would change its time" if found else ""
    rows = tuple(_row(plan, change) for change in found)
    again = ""
    if any(row.get("repeated") for row in rows):
        again = "done again: computation that another device does as well; "
    notes = (
        f"times as fast: rows a second, against this plan; {again}the same plan: with all "
        "placements held fixed",
    )
    return Table("changes", title, _COLUMNS, rows, notes=notes if found else ())


def _row(plan: Plan, change: Change) -> Row:
    told: Row = {
        "change": change.what,
        "how": "a new plan" if change.is_new else "the same plan",
        "why_not": change.why_not,
    }
    after = change.plan
    if after is None:
        return told
    before_s, after_s = figures(plan).iteration_s, figures(after).iteration_s
    alike = after if change.is_new else plan  # faster links change neither bytes nor computation
    return {
        **told,
        "iteration_s": after_s,
        "speed": (after.batch / after_s) / (plan.batch / before_s) if after_s else 1.0,
        "memory_bytes": max(figures(alike).needed_bytes),
        "repeated": repeated(alike) or None,
    }


def repeated(plan: Plan) -> float:
    """The share of all that the devices compute that another device computes as well."""
    every = once = 0.0
    for stage in (plan.stages[first] for first in figures(plan).same_as):
        for layer in stage.layers:
            seconds = stage_figures(stage).layer_cost(layer).compute_s * stage.mesh.size
            every += seconds
            once += seconds / layer.split.count(COPIES)
    return 1 - once / every if every else 0.0


def repeated_layers(plan: Plan) -> list[PlannedLayer]:
    """Layers that several devices compute alike, those first that waste the most."""

    def wasted_s(layer: PlannedLayer) -> float:
        cost = figures(plan).layer_cost(layer)
        return cost.compute_s * (1 - 1 / layer.split.count(COPIES))

    found = [layer for layer in plan.layers if layer.split.count(COPIES) > 1]
    return sorted(found, key=wasted_s, reverse=True)
