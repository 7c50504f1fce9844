"""The known schemes on their own, as `compare` shows them: each at its best, and its plan.

What a plan records beside itself, `mesh.plan_mesh` prices; here are the plans of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..cluster.spec import Cluster
from ..graph.graph import Graph
from ..graph.regions import repeated_blocks
from ..plans.plan import Plan
from ..plans.stage import PlannedBaseline
from .asked import cost_model, micro_batch_counts, prepared
from .baselines.hap import hap_rules
from .baselines.pricing import BaselinePricer, tried_again
from .mesh import write_stage
from .options import DEFAULTS, PlanOptions
from .planner import paused_collector
from .shares import proportional_shares
from .tables.groups import MicroBatches


def baseline_plans(
    graph: Graph, cluster: Cluster, options: PlanOptions = DEFAULTS
) -> dict[str, tuple[PlannedBaseline, Plan | None]]:
    """Every known scheme on its best topology: its record and, if it fits, its plan, by name.

    The errors are those of `find_plan`.
    """
    return {found[0].name: found for found in each_baseline(graph, cluster, options)}


def each_baseline(
    graph: Graph, cluster: Cluster, options: PlanOptions = DEFAULTS
) -> Iterator[tuple[PlannedBaseline, Plan | None]]:
    """The same, one after the other.

    Where hosts are not alike and no shares are asked for, at even shares and then, named after
    them, at shares in proportion to the speed of the devices: HAP's DP-EV and DP-CP are two of
    these. Last what HAP's rules find.
    """
    even = options.given_shares or cluster.shares
    tried = [even]
    has_choice = cluster.groups and options.given_shares is None and not even
    if has_choice:
        tried.append(proportional_shares(cluster, graph))
    held, graph = options.in_flight or 1, prepared(graph, options)
    micro = MicroBatches.of(graph, held)
    counts = micro_batch_counts(graph, options.micro_batches, held)
    again = tried_again(repeated_blocks(micro.graph(counts[0])), options.checkpointing)
    for shares in dict.fromkeys(tried):
        model = cost_model(cluster.with_shares(shares), options)
        at = "" if shares == even else f", shares {':'.join(map(str, shares))}"
        with paused_collector():
            for rival in BaselinePricer(micro, counts, model, options.seed, again).each():
                name, found = rival.record.name, rival.found
                plan = found and Plan.on_one_mesh(write_stage(found, options.seed, 0.0, name))
                yield replace(rival.record, name=f"{name}{at}"), plan
    if has_choice:
        with paused_collector():
            found = hap_rules(graph, micro, counts, cost_model(cluster, options), options)
        yield found
