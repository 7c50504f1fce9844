"""The planner: a graph and a cluster to a plan, on one mesh or in the stages of a pipeline.

A mesh is a pipeline of one stage with one micro-batch in flight. `find_plan` cuts the model into
stages (`stages.choice`; without stages there is one, with all layers on all devices) and plans each
on its own mesh (`mesh.plan_mesh`), with the micro-batches in flight that its place in the pipeline
asks for. Stages of equal layers on equal meshes have one plan under several names.

The known schemes are priced beside it, and the plan records them: on one mesh each on its best
topology, and in stages each in the same stages, with its best topology for every one of them.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..cluster.spec import Cluster
from ..cost.model import CostModel
from ..graph.cut import CutGraph, cut_graph
from ..graph.demands import Demands, find_demands, stage_starts
from ..graph.graph import Graph
from ..graph.hints import as_hints
from ..graph.regions import repeated_blocks
from ..plans.figures import figures
from ..plans.format import format_seconds
from ..plans.plan import Plan
from ..plans.records import PlannedBaseline
from ..plans.schedule.orders import in_flight
from ..plans.stage import StagePlan
from ..search.budget import Deadline, Ended
from .asked import (
    check_no_stages,
    cost_model,
    micro_batch_counts,
    prepared,
    stage_counts,
    with_hints_of,
)
from .baselines.pricing import BaselinePricer, tried_again
from .mesh import MeshPlan, plan_hinted, plan_mesh, write_stage
from .options import DEFAULTS, PlanOptions
from .shares import (
    TRIES,
    Shares,
    alone_s,
    best_shares,
    better_shares,
    divided_rows,
    proportional_shares,
    speeds,
)
from .stages.choice import MOST_STAGES, ranked_partitions
from .stages.partition import Partition, Stage
from .stages.stage_prices import StagePrices
from .tables.group_table import Space
from .tables.groups import MicroBatches

_log = logging.getLogger(__name__)
MOST_LAYERS = 96  # that may be cut between: 48 and 192 gave the same plans of two GPTs
# Repeated blocks a stage, enough to cut between them only: with 1, GPT 0.35B (24 blocks) in four
# stages of 9 GB took 6 % longer, planned in half the time; with 4 the same.
_MANY = 2
_CANDIDATES = (
    4  # partitions that are planned until one fits the memory, which are a plan's work each
)
# Times the micro-batches of stages that do not fit, once time is over. With 1, GPT 0.35B in 4 and 8
# stages on 2x8 took 1.4 times as long, for the same plans.
_MANY_MORE = 2
# Of the seconds of a plan: where computation alone takes as long as that on the hosts of one group,
# these are not planned for, as what they may gain is not worth a search.
_ALONE = 0.75
_ONE_MESH = 0.5  # of the seconds, before stages are tried: chosen, not measured


@contextmanager
def paused_collector() -> Iterator[None]:
    """Without Python's garbage collector inside, as many objects are made that stay.

    It looks at all objects again each time that so many new ones were made, and so costs the more
    the larger a traced model and its plan are, though reference counts free what planning leaves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@paused_collector()
def find_plan(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions = DEFAULTS,
    *,
    space: Space | None = None,
) -> Plan:
    """The best plan found for training `graph` (traced with its loss) on `cluster`.

    Ctrl-C ends the search; what was found until then is the plan.

    space: which strategies are searched on one mesh; a baseline restricts them. None: what the
           options say

    Raises ValueError if the batch cannot be cut as asked for, there are more stages than layers or
    devices, the machine file has no rate for the precision, or nothing fits the memory.
    """
    if not graph.loss:
        raise ValueError(
            "the graph was traced without a loss; trace(..., loss=loss_fn) plans training"
        )
    model = cost_model(cluster, options)
    graph, options = prepared(graph, options), with_hints_of(graph, options)
    if options.stages in (None, 1):
        check_no_stages(options)
        return _on_hosts(graph, model, options, space)
    if cluster.groups:
        raise ValueError(
            f"{cluster.name} has hosts of {len(cluster.groups)} kinds; stages are for hosts that "
            "are all alike: plan it without stages"
        )
    assert space is None, "stages are searched among all strategies"
    if not options.hints:
        return _staged(graph, model, options)
    free, plan = (_staged(graph, model, own) for own in (replace(options, hints=()), options))
    seconds = min(figures(free).iteration_s, figures(plan).iteration_s)
    return replace(plan, hints=as_hints(options.hints), unhinted_s=seconds)


def _staged(graph: Graph, model: CostModel, options: PlanOptions) -> Plan:
    """In the stages that are asked for, or as many as pay."""
    deadline = Deadline.after(options.budget_seconds)
    if options.stages != "auto":
        plan = _in_stages(graph, model, options, deadline)
        return _interrupted(plan) if deadline.was_ended else plan
    found: list[Plan] = []
    failed: list[ValueError] = []
    try:
        one = replace(options, budget_seconds=deadline.budget_s(_ONE_MESH))
        found.append(_on_one_mesh(graph, model, one))
    except ValueError as error:
        failed.append(error)
    if found and (deadline.is_over or found[0].stage.search.end == "interrupted"):
        return found[0]
    try:
        found.append(_in_stages(graph, model, options, deadline, gives_up=bool(found)))
    except ValueError as error:
        failed.append(error)
    except (KeyboardInterrupt, Ended) as ended:
        if not found:
            raise
        if isinstance(ended, KeyboardInterrupt):
            deadline.end()
    if not found:
        raise failed[0]
    best = min(found, key=lambda plan: figures(plan).iteration_s)
    return _interrupted(best) if deadline.was_ended else best


def _interrupted(plan: Plan) -> Plan:
    """The same, found before Ctrl-C."""
    searches = (replace(stage.search, end="interrupted") for stage in plan.stages)
    pairs = zip(plan.stages, searches, strict=True)
    return replace(plan, stages=tuple(replace(stage, search=own) for stage, own in pairs))


def _on_hosts(graph: Graph, model: CostModel, options: PlanOptions, space: Space | None) -> Plan:
    """The plan on one mesh at the shares that are asked for, or that are best.

    Beside the known schemes at these shares the plan has the best of them at even ones.
    """
    cluster, given = model.cluster, options.given_shares
    if given is not None or cluster.shares or not cluster.groups:
        return _on_one_mesh(graph, _by(model, given or cluster.shares), options, space)
    failed: list[ValueError] = []
    deadline = Deadline.after(options.budget_seconds)

    def at(shares: Shares) -> Plan | None:
        own = replace(options, budget_seconds=deadline.budget_s(1 / TRIES))
        try:
            return _on_one_mesh(graph, _by(model, shares), own, space)
        except ValueError as error:
            failed.append(error)
            return None

    rows = divided_rows(cluster, graph.batch)
    best, plans = best_shares(
        at,
        lambda plan: figures(plan).iteration_s,
        lambda plan: better_shares(plan, rows),
        speeds(cluster, graph),
        rows,
    )
    if best is None:
        raise failed[0]
    plan, even = plans[best], plans.get(())
    _tell_of_groups_alone(graph, model, replace(options, baselines=False), plan)
    rival = even.closest_baseline if even is not None and even is not plan else None
    if rival is None:
        return plan
    named = replace(rival, name=f"{rival.name}, even shares")
    return replace(plan, baselines=(*plan.baselines, named))


def _tell_of_groups_alone(graph: Graph, model: CostModel, options: PlanOptions, plan: Plan) -> None:
    """Warn where the hosts of one group are faster without the others.

    A share of nothing, which no mesh has, is a plan on fewer hosts; which to start is the user's.
    """
    if options.budget_seconds is not None or plan.stage.search.end == "interrupted":
        return
    seconds = figures(plan).iteration_s
    for number, group in enumerate(model.cluster.groups):
        alone = model.cluster.of_group(number)
        if alone_s(alone.device, alone, graph) / alone.num_devices >= _ALONE * seconds:
            continue
        try:
            found = figures(_on_one_mesh(graph, replace(model, cluster=alone), options))
        except ValueError:
            continue
        if found.iteration_s < seconds:
            _log.warning(
                "the hosts of %s would take %s a step without the others, all together take %s; "
                "plan for them with a machine file of their own",
                group.name, format_seconds(found.iteration_s), format_seconds(seconds),
            )  # fmt: skip


def _by(model: CostModel, shares: Shares) -> CostModel:
    return replace(model, cluster=model.cluster.with_shares(shares))


def _on_one_mesh(
    graph: Graph, model: CostModel, options: PlanOptions, space: Space | None = None
) -> Plan:
    held = options.in_flight or 1
    counts = micro_batch_counts(graph, options.micro_batches, held)
    micro = MicroBatches.of(graph, held)
    if options.hints:
        found, unhinted_s = plan_hinted(micro, counts, model, options, space)
    else:
        found, unhinted_s = plan_mesh(micro, counts, model, options, space), None
    plan = Plan.on_one_mesh(found.stage, tuple(rival.record for rival in found.rivals))
    return replace(plan, hints=as_hints(options.hints), unhinted_s=unhinted_s)


def _in_stages(
    graph: Graph,
    model: CostModel,
    options: PlanOptions,
    deadline: Deadline,
    gives_up: bool = False,
) -> Plan:
    """The best of the ranked partitions of several stages whose stages all fit the memory.

    gives_up: Ended at the deadline, instead of some plan soon after it
    """
    model = replace(model, overlap=False)
    blocks = len(repeated_blocks(graph))
    most = min(MOST_LAYERS, blocks) if blocks >= _MANY * MOST_STAGES else MOST_LAYERS
    cut = cut_graph(graph, most, stage_starts(graph, as_hints(options.hints)))
    counts = stage_counts(cut, options.micro_batches)
    while True:
        prices, ranked = ranked_partitions(cut, model, counts, options, deadline, gives_up)
        if gives_up and deadline.is_over:
            raise Ended
        several = [chosen for chosen in ranked if len(chosen.stages) > 1]
        if several[:1] != ranked[:1]:
            raise ValueError("one mesh is faster than any number of stages")
        failed: list[ValueError] = []
        for chosen in several[:_CANDIDATES]:
            try:
                return _on_partition(prices, chosen, options, deadline)
            except ValueError as error:
                failed.append(error)
        counts = tuple(n for n in counts if n > several[0].micro_batches)
        if deadline.is_over:
            counts = tuple(n for n in counts if n > _MANY_MORE * several[0].micro_batches) or counts
        if options.budget_seconds is None or not counts:
            raise failed[0]
        # what was searched in time does not fit; smaller micro-batches may


def _on_partition(
    prices: StagePrices, chosen: Partition, options: PlanOptions, deadline: Deadline
) -> Plan:
    """The stages of a partition, each planned by itself; or the known scheme that is faster there.

    Raises ValueError if one of them does not fit the memory, which the parts of a stage share
    evenly.
    """
    parts, cut, model = chosen.micro_batches, prices.cut, prices.model
    model = replace(model, memory_limit_bytes=model.limit_bytes / options.chunks)
    count = len(chosen.stages) // options.chunks
    held_by = in_flight(options.schedule, count, parts, options.chunks, options.delay)
    evaluations = options.budget_evaluations
    evaluations = evaluations and max(1, round(evaluations / len(chosen.stages)))
    demands = find_demands(cut.graph, as_hints(options.hints))
    planned: list[MeshPlan] = []
    for n, (stage, held) in enumerate(zip(chosen.stages, held_by, strict=True)):
        micro = MicroBatches.of(cut.stage(stage.first, stage.last), held, demands)
        found = _known(planned, micro.graph(parts), demands, stage, held, deadline.is_over)
        if found is None:
            again = options.checkpointing if prices.recomputes else "none"
            if again == "auto" and deadline.is_over and stage.price.work_bytes > 0:
                again = "all"  # as it was priced: nothing else needs to be tried first
            if again == "all" and not repeated_blocks(micro.graph(parts)):
                again = "none"
            try:
                found = plan_mesh(
                    micro,
                    (parts,),
                    replace(model, cluster=model.cluster.with_shape(*stage.shape)),
                    replace(
                        options,
                        checkpointing=again,
                        budget_seconds=deadline.budget_s(1 / (len(chosen.stages) - n)),
                        budget_evaluations=evaluations,
                    ),
                    prices=prices.pair_prices(stage.shape),
                )
                if found.stage.search.end == "interrupted":
                    deadline.end()
            except ValueError as error:
                layers = f"layers {stage.first}-{stage.last - 1} on {stage.place}"
                raise ValueError(f"stage {n} ({layers}): {error}") from error
        planned.append(replace(found, stage=found.stage.at(stage.first, stage.last, stage.place)))
    small = cut.graph.with_batch(cut.graph.batch // parts) if parts > 1 else cut.graph
    whole = Plan(
        CutGraph(small, cut.layers),
        model.cluster,
        tuple(own.stage for own in planned),
        (),
        options.schedule,
        options.delay,
        options.chunks,
    )
    rivals = _rivals(whole, planned, options)
    if not rivals:
        return whole
    allowed = [p for r, p in rivals if not r.breaks and (options.zero or "ZeRO" not in r.name)]
    best = min([whole, *filter(None, allowed)], key=lambda plan: figures(plan).iteration_s)
    return replace(best, baselines=tuple(record for record, _ in rivals))


def _known(
    planned: Sequence[MeshPlan], graph: Graph, demands: Demands, stage: Stage, held: int, late: bool
) -> MeshPlan | None:
    """The plan of an earlier stage with the same layers and hints under other names.

    With fewer micro-batches in flight it is the best one, too, if it lost nothing to the memory;
    if it is late, it will do anyway.
    """
    for other in planned:
        own = other.stage
        if own.place.shape != stage.shape or own.in_flight < held:
            continue
        if own.in_flight == held or other.is_free or late:
            found = own.for_equal(graph)
            asked = [[demands.get(op.name) for op in g.ops] for g in (own.graph, graph)]
            if found is not None and asked[0] == asked[1]:
                return replace(other, stage=replace(found, in_flight=held))
    return None


def _rivals(
    whole: Plan, planned: Sequence[MeshPlan], options: PlanOptions
) -> list[tuple[PlannedBaseline, Plan | None]]:
    """Each known scheme in the stages of `whole`: its record, and its plan if it fits.

    On one device there is nothing to choose, so such a stage is as in `whole`. None where there was
    no time to price them for each stage.
    """
    if any(not own.rivals and own.stage.cluster.num_devices > 1 for own in planned):
        return []
    found: list[tuple[PlannedBaseline, Plan | None]] = []
    for number, first in enumerate(next((own.rivals for own in planned if own.rivals), ())):
        stages: list[StagePlan] = []
        topologies: list[str] = []
        for own in planned:
            if not own.rivals:
                stages.append(own.stage)
                continue
            rival, at = own.rivals[number], own.stage
            topologies.append(rival.record.topology)
            if rival.found is not None:
                stage = write_stage(rival.found, options.seed, 0.0, rival.record.name)
                same = stage.for_equal(at.graph)
                assert same is not None, "an equal stage has the rivals of another one"
                same = replace(same, in_flight=at.in_flight)
                stages.append(same.at(at.first, at.last, at.place))
        topology = " | ".join(dict.fromkeys(topologies))
        breaks = (own.rivals[number].record.breaks for own in planned if own.rivals)
        record = replace(first.record, topology=topology, iteration_s=None, communication_s=None)
        record = replace(record, breaks=next(filter(None, breaks), ""))
        plan = None
        if len(stages) == len(planned):
            plan = replace(whole, stages=tuple(stages))
            record = replace(
                record,
                memory_bytes=max(figures(plan).memory_bytes),
                iteration_s=figures(plan).iteration_s,
                communication_s=figures(plan).cost.exposed_s,
            )
        found.append((record, plan))
    return found


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
    these.
    """
    even = options.given_shares or cluster.shares
    tried = [even]
    if cluster.groups and options.given_shares is None and not even:
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
