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
from .baselines.families import families_of, tried_again
from .baselines.hap import hap_rules
from .baselines.pricing import BaselinePricer
from .baselines.splits import splits
from .mesh import write_stage
from .options import DEFAULTS, PlanOptions, paused_collector
from .shares import Shares, proportional_shares
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
    these. Then the splits of rows by others, and last what HAP's rules find.
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
    priced: dict[tuple[str, Shares], tuple[PlannedBaseline, Plan | None]] = {}

    def each(shares: Shares, family: str = "") -> Iterator[tuple[PlannedBaseline, Plan | None]]:
        """The families at these shares, or one of them, each priced once."""
        if (family, shares) in priced:
            yield priced[family, shares]
            return
        model = cost_model(graph, cluster.with_shares(shares), options)
        families = [f for f in families_of(graph) if f.name == family]
        with paused_collector():
            pricer = BaselinePricer(micro, counts, model, options.seed, again, families)
            for rival in pricer.each():
                name, found = rival.record.name, rival.found
                plan = found and Plan.on_one_mesh(write_stage(found, options.seed, 0.0, name))
                priced[name, shares] = rival.record, plan
                yield rival.record, plan

    for shares in dict.fromkeys(tried):
        at = "" if shares == even else f", shares {':'.join(map(str, shares))}"
        for record, plan in each(shares):
            yield replace(record, name=f"{record.name}{at}"), plan
    if not has_choice:
        return
    model = cost_model(graph, cluster, options)
    for split in splits(graph, micro, model, options):
        shares = () if len(set(split.shares)) == 1 else split.shares
        at = f", shares {':'.join(map(str, shares))}" if shares else ", even shares"
        for record, plan in each(shares, split.family):
            yield replace(record, name=split.name, topology=f"{record.topology}{at}"), plan
    with paused_collector():
        yield hap_rules(graph, micro, counts, model, options)
