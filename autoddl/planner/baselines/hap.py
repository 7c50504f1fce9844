"""What HAP's rules find (Zhang et al., EuroSys 2024), where hosts are not alike.

HAP splits each tensor along one dim over all devices, so all axes of the mesh are one for it;
pieces are filled up to the largest; strategies at given shares and shares at given strategies are
sought in turns, from shares in proportion to the speed of the devices on (section 3.1). Its search,
collectives in several steps, shares in whole units (its linear program, Eq. 3, rounds them), ZeRO's
storages and plans within the memory are ours, differences in its favour; so this is what its space
has, and by how much a mesh of several axes is ahead. Where nothing fits, it is told what the
fastest needs, as HAP knows of no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...cost.model import CostModel
from ...cost.operators import speeds
from ...graph.graph import Graph
from ...plans.figures import figures
from ...plans.plan import Plan
from ...plans.stage import PlannedBaseline
from ..mesh import plan_mesh
from ..options import PlanOptions
from ..shares import Shares, best_shares, better_shares, divided_rows
from ..tables.group_table import Space
from ..tables.groups import MicroBatches

NAME = "HAP's rules"


def hap_rules(
    graph: Graph, micro: MicroBatches, counts: Sequence[int], model: CostModel, options: PlanOptions
) -> tuple[PlannedBaseline, Plan | None]:
    """The record, and the plan if one fits; `micro` and `counts` as `plan_mesh` has them."""
    plan = _planned(graph, micro, counts, model, options)
    if plan is not None:
        told = figures(plan)
        return _record(plan, told.iteration_s, told.cost.exposed_s), plan
    unlimited = replace(model, memory_limit_bytes=math.inf)
    large = _planned(graph, micro, counts, unlimited, options)
    return _record(large) if large else PlannedBaseline(NAME, _TOPOLOGY, 1, None), None


_TOPOLOGY = "one axis"


def _record(
    plan: Plan, iteration_s: float | None = None, communication_s: float | None = None
) -> PlannedBaseline:
    at = ":".join(map(str, plan.stage.shares))
    return PlannedBaseline(
        NAME, f"{_TOPOLOGY}, shares {at}" if at else _TOPOLOGY, plan.micro_batches,
        max(figures(plan).needed_bytes), iteration_s, communication_s,
    )  # fmt: skip


def _planned(
    graph: Graph, micro: MicroBatches, counts: Sequence[int], model: CostModel, options: PlanOptions
) -> Plan | None:
    space = Space(split_channels=options.split_channels, zero=True, one_axis=True)
    own = replace(options, baselines=False, hints=(), budget_seconds=None)

    def at(shares: Shares, below_s: float) -> Plan | None:
        cluster = model.cluster.with_shares(shares)
        padded = replace(cluster, collectives=cluster.collectives.even)
        try:
            found = plan_mesh(
                micro, counts, replace(model, cluster=padded), own, space, below_s=below_s
            )
        except ValueError:
            return None
        return Plan.on_one_mesh(found.stage)

    cluster = model.cluster
    rows = divided_rows(cluster, graph.batch)
    best, plans = best_shares(
        at,
        lambda plan: figures(plan).iteration_s,
        lambda plan, limit_bytes: better_shares(plan, rows, limit_bytes),
        (speeds(cluster, graph),),
        rows,
    )
    return None if best is None else plans[best]
