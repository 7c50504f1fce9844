"""A plan in the stages of a pipeline: of the partitions (`choice`), each stage on its own mesh.

Stages of equal layers on equal meshes have one plan under several names. Each known scheme is
priced in the same stages, with its best topology for every one of them; one that is faster there
is the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ...cost.model import CostModel
from ...graph.cut import CutGraph, cut_graph
from ...graph.demands import Demands, find_demands, stage_starts
from ...graph.graph import Graph
from ...graph.hints import as_hints
from ...graph.regions import repeated_blocks
from ...plans.figures import figures
from ...plans.format import before, more
from ...plans.plan import Plan
from ...plans.schedule.orders import in_flight
from ...plans.stage import PlannedBaseline, StagePlan
from ...search.budget import Deadline, Ended
from ..asked import stage_counts
from ..mesh import MeshPlan, plan_mesh, write_stage
from ..options import PlanOptions
from ..tables.groups import MicroBatches
from .choice import MOST_STAGES, fastest_simulated, ranked_partitions
from .stage_prices import StagePrices
from .task import Partition, Stage, Task

MOST_LAYERS = 96  # that may be cut between: 48 and 192 gave the same plans of two GPTs
# Repeated blocks a stage, enough to cut between them only: with 1, GPT 0.35B (24 blocks) in four
# stages of 9 GB took 6 % longer, planned in half the time; with 4 the same.
_MANY = 2
# Partitions that are planned until one fits the memory, a plan's work each. With 1 and 8 VGG13 in
# two stages of 1.2 GB on 2x4 had the same plan, in the same time.
_CANDIDATES = 4
# Times the micro-batches of stages that do not fit, once time is over. With 1, GPT 0.35B in 4 and 8
# stages on 2x8 took 1.4 times as long, for the same plans.
_MANY_MORE = 2


def plan_in_stages(
    graph: Graph,
    model: CostModel,
    options: PlanOptions,
    deadline: Deadline,
    gives_up: bool = False,
) -> Plan:
    """The best of the ranked partitions of several stages whose stages all fit the memory.

    gives_up: Ended at the deadline and after Ctrl-C, instead of some plan soon after it

    ValueError if none fits, or one mesh is faster than stages that were not asked for.
    """
    model = replace(model, overlap=False)  # partitions are of serial passes
    blocks = len(repeated_blocks(graph))
    most = min(MOST_LAYERS, blocks) if blocks >= _MANY * MOST_STAGES else MOST_LAYERS
    cut = cut_graph(graph, most, stage_starts(graph, as_hints(options.hints)))
    counts = stage_counts(cut, options.micro_batches)
    while True:
        asked = cut, model, counts, options
        with before("a plan of each stage"):
            prices, ranked, task = ranked_partitions(*asked, deadline, gives_up)
        if gives_up and deadline.is_over:
            raise Ended
        several = [chosen for chosen in ranked if len(chosen.stages) > 1]
        if several[:1] != ranked[:1]:
            raise ValueError("one mesh is faster than any number of stages")
        failed: list[ValueError] = []
        for chosen in several[:_CANDIDATES]:
            try:
                plan = _on_partition(prices, chosen, options, deadline, gives_up)
                return _or_simulated(plan, chosen, prices, several, task, options, deadline)
            except ValueError as error:
                failed.append(error)
        if not gives_up and not deadline.is_over:
            with suppress(ValueError):
                return _cut_at_once(*asked, deadline)
        counts = tuple(n for n in counts if n > several[0].micro_batches)
        if deadline.is_over:
            counts = tuple(n for n in counts if n > _MANY_MORE * several[0].micro_batches) or counts
        hurries = options.budget_seconds is not None or deadline.was_ended
        if not hurries or not counts:
            raise failed[0]
        # what was searched in time does not fit; smaller micro-batches may


def _cut_at_once(
    cut: CutGraph,
    model: CostModel,
    counts: Sequence[int],
    options: PlanOptions,
    deadline: Deadline,
) -> Plan:
    """The plan of the stages into which no time at all cuts, with memory dear.

    With time stages are priced between one placement and another, which need not exist: a GPT of
    eight blocks was refused in two stages that fitted when they were cut at once. ValueError if
    they do not.
    """
    prices, ranked, _ = ranked_partitions(cut, model, counts, options, Deadline(0.0))
    several = [chosen for chosen in ranked if len(chosen.stages) > 1]
    if not several:
        raise ValueError("one mesh is faster than any number of stages")
    return _on_partition(prices, several[0], options, deadline, gives_up=False)


def _or_simulated(
    plan: Plan,
    chosen: Partition,
    prices: StagePrices,
    several: Sequence[Partition],
    task: Task | None,
    options: PlanOptions,
    deadline: Deadline,
) -> Plan:
    """The plan of a partition, or of that which is simulated to be faster, if it is as planned."""
    if deadline.is_over or task is None:
        return plan
    try:
        other = fastest_simulated(several, task, options.delay)
        if other is chosen:
            return plan
        found = _on_partition(prices, other, options, deadline, gives_up=True)
    except (ValueError, Ended):  # it does not fit
        return plan
    except KeyboardInterrupt:
        deadline.end()
        return plan
    return min(plan, found, key=lambda own: figures(own).iteration_s)


def _on_partition(
    prices: StagePrices,
    chosen: Partition,
    options: PlanOptions,
    deadline: Deadline,
    gives_up: bool,
) -> Plan:
    """The stages of a partition, each planned by itself; or the known scheme that is faster there.

    gives_up: Ended after Ctrl-C, which otherwise leaves the stages that follow no time
    Raises ValueError if one of them does not fit the memory, which the parts of a stage share
    evenly.
    """
    parts, cut, model = chosen.micro_batches, prices.cut, prices.model
    limit = model.limit_bytes / options.chunks
    model = replace(model, memory_limit_bytes=limit, overlap=_overlaps(options))
    count = len(chosen.stages) // options.chunks
    held_by = in_flight(options.schedule, count, parts, options.chunks, options.delay)
    evaluations = options.budget_evaluations
    evaluations = evaluations and max(1, round(evaluations / len(chosen.stages)))
    demands = find_demands(cut.graph, as_hints(options.hints))
    planned: list[MeshPlan] = []
    for n, (stage, held) in enumerate(zip(chosen.stages, held_by, strict=True)):
        micro = MicroBatches.of(cut.stage(stage.first, stage.last), held, demands)
        own = _on(model, stage, prices.shares(stage.shape))
        found = _known(planned, micro.graph(parts), demands, own, held, deadline.is_over)
        if found is None:
            left = len(chosen.stages) - n
            asked = replace(options, budget_evaluations=evaluations)
            try:
                with before(more(left - 1, "stage")):
                    found = _stage_plan(
                        prices, stage, micro, parts, own, asked, deadline, left, gives_up
                    )
            except ValueError as error:
                layers = f"layers {stage.first}-{stage.last - 1} on {stage.place}"
                raise ValueError(f"stage {n} ({layers}): {error}") from error
            if gives_up and deadline.was_ended:
                raise Ended
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


def _overlaps(options: PlanOptions) -> bool:
    """Whether gradients travel in buckets: not where the weights' half of a pass comes later.

    That half has no schedule of its own, so it is not known what would run beside it.
    """
    return options.overlap and options.delay is None and options.schedule != "zb-h1"


def _stage_plan(
    prices: StagePrices,
    stage: Stage,
    micro: MicroBatches,
    parts: int,
    model: CostModel,
    options: PlanOptions,
    deadline: Deadline,
    left: int,
    gives_up: bool,
) -> MeshPlan:
    """The plan of a stage, by its share of the time, if that is limited.

    After Ctrl-C, which ends the time of this stage and of those that follow, some plan soon, unless
    it `gives_up`.

    left: stages that have no plan yet
    """
    known = prices.pair_prices(stage.shape)
    few = prices.few(stage.first, stage.last, stage.shape, parts)
    runs_again = stage.price.work_bytes > 0
    while True:
        again = options.checkpointing if prices.recomputes else "none"
        if again == "auto" and deadline.is_over and runs_again:
            again = "all"  # as it was priced: nothing else needs to be tried first
        if again == "all" and not repeated_blocks(micro.graph(parts)):
            again = "none"
        budget_s = deadline.budget_s(1 / left)
        asked = replace(options, checkpointing=again, budget_seconds=budget_s)
        try:
            found = plan_mesh(micro, (parts,), model, asked, None, known, few, runs_again)
        except KeyboardInterrupt:
            if gives_up or deadline.was_ended:
                raise
            deadline.end()
            continue
        if found.stage.search.end == "interrupted":
            deadline.end()
        return found


def _on(model: CostModel, stage: Stage, shares: tuple[int, ...]) -> CostModel:
    """Of the stage's devices; where hosts are not alike they may hold as much more as they have."""
    own = model.cluster.part(stage.place).with_shares(shares)
    limit = model.limit_bytes * (own.memory_bytes / model.cluster.memory_bytes)
    return replace(model, cluster=own, memory_limit_bytes=limit)


def _known(
    planned: Sequence[MeshPlan],
    graph: Graph,
    demands: Demands,
    model: CostModel,
    held: int,
    late: bool,
) -> MeshPlan | None:
    """The plan of an earlier stage with the same layers and hints under other names.

    With fewer micro-batches in flight it is the best one, too, if it lost nothing to the memory;
    if it is late, it will do anyway.
    """
    for other in planned:
        own = other.stage
        if own.cluster != model.cluster or own.in_flight < held:
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
