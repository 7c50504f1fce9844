"""What other devices, links, memory or batches would bring a plan, each planned anew.

The new plans are searched with the plan's own options, but the known schemes are not priced beside
them. What is faster than the new plan, the old one under the same change, stands in its place.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import replace

from ..cluster.spec import Cluster
from ..planner.options import PlanOptions
from ..planner.planner import find_plan
from ..plans import Plan
from ..plans.figures import figures
from ..plans.format import before, more
from ..plans.report.changes import LINKS, Change, with_faster

_log = logging.getLogger(__name__)
_MOST_HINTS = 8  # that are left out one by one: chosen, each is a plan's work


def planned_anew(plan: Plan) -> list[Change]:
    """Without hints, faster links, twice the batch, twice the memory, and half of the devices.

    Of the hints that one whose loss would help most comes first.
    """
    asked = list(_asked(plan))
    with before(more(len(asked), "change")):
        found = _without_hints(plan)
    for number, (what, batch, cluster, options) in enumerate(asked, start=1):
        _log.info("planning for %s", what)
        with before(more(len(asked) - number, "change")):
            found.append(_planned(plan, what, batch, cluster, options))
    return found


def _without_hints(plan: Plan) -> list[Change]:
    """Without each of the hints, if they are few, and without all; the fastest first."""
    hints, options = plan.hints, own_options(plan)
    asked = {f"without {at}": tuple(own for own in hints if own != at) for at in hints}
    if len(hints) > _MOST_HINTS:
        asked = {}
    if len(hints) != 1:
        asked |= {"without all hints": ()} if hints else {}
    found = []
    for number, (what, others) in enumerate(asked.items(), start=1):
        _log.info("planning %s", what)
        own = replace(options, hints=others)
        with before(more(len(asked) - number, "plan without a hint", "plans without a hint")):
            found.append(_planned(plan, what, plan.batch, plan.cluster, own))
    return sorted(found, key=lambda c: figures(c.plan).iteration_s if c.plan else math.inf)


def _asked(plan: Plan) -> Iterator[tuple[str, int, Cluster, PlanOptions]]:
    """What is changed, and the batch, cluster and options that it means."""
    cluster, options = plan.cluster, own_options(plan)
    there = {"inter": cluster.nodes > 1, "intra": cluster.gpus_per_node > 1}
    for link, what in LINKS.items():
        if there[link]:
            yield what, plan.batch, with_faster(cluster, link), options
    yield "twice the batch", 2 * plan.batch, cluster, options
    limit = plan.memory_limit_bytes
    if math.isfinite(limit):
        more = replace(options, memory_limit_bytes=2 * limit)
        yield "twice the memory", plan.batch, cluster, more
    if cluster.nodes % 2 == 0:
        yield "half of the hosts", plan.batch, cluster.with_shape(cluster.nodes // 2), options
    elif cluster.gpus_per_node % 2 == 0:
        half = cluster.with_shape(gpus_per_node=cluster.gpus_per_node // 2)
        yield "half of the devices", plan.batch, half, options


def own_options(plan: Plan) -> PlanOptions:
    """Those that it was planned with, as far as it records them; without the known schemes."""
    staged = len(plan.stages) > 1
    of_stages = {
        "stages": plan.num_stages, "schedule": plan.schedule_name, "delay": plan.delay,
        "chunks": plan.chunks,
    }  # fmt: skip
    return PlanOptions(
        seed=plan.seed,
        optimizer=plan.optimizer,
        memory_limit_bytes=plan.memory_limit_bytes,
        comm_rule=plan.stages[0].comm_rule,  # type: ignore[arg-type]
        baselines=False,
        precision=plan.precision,
        back_end=plan.back_end,
        ema=plan.ema,
        batch_norm=plan.batch_norm,
        hints=plan.hints,
        **(of_stages if staged else {}),  # type: ignore[arg-type]
    )


def _planned(plan: Plan, what: str, batch: int, cluster: Cluster, options: PlanOptions) -> Change:
    try:
        found = find_plan(plan.graph.with_batch(batch), cluster, options)
    except ValueError as error:
        return Change(what, None, True, str(error).partition(":")[0].partition(";")[0])
    if batch == plan.batch and cluster.num_devices == plan.cluster.num_devices:
        same = plan.on(cluster)
        if figures(same).iteration_s < figures(found).iteration_s:
            return Change(what, same)
    return Change(what, found, True)
