"""A plan in the stages of a pipeline: of the partitions (`choice`), each stage on its own mesh.

Stages of equal layers on equal meshes have one plan under several names. A stage on hosts of two
kinds is planned at several shares of these (`shares`), of which the pipeline has the fastest.

What a stage takes and sends, and whether it fits, is known once it is planned. Where it is not as
was told, the partitions are ranked anew with what is known (`task.Learned`), until the best of them
is one that has been planned; the fastest plan is taken. Beside that each known scheme is priced in
the same stages, with its best topology for every one of them; one that is faster is the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from ..fit_in_memory import is_full
from ..mesh import MeshPlan, plan_mesh, with_schemes, write_stage
from ..options import PlanOptions
from ..shares import TRIES, Shares, best_shares, better_shares, by_experts, divided_rows, starts
from ..tables.groups import MicroBatches
from .choice import MOST_STAGES, WORTH, Ranking, fastest_simulated
from .stage_prices import StagePrices
from .task import Cuts, Partition, Stage

MOST_LAYERS = 96  # that may be cut between: 48 and 192 gave the same plans of two GPTs
# Repeated blocks a stage, enough to cut between them only: with 1, GPT 0.35B (24 blocks) in four
# stages of 9 GB took 6 % longer, planned in half the time; with 4 the same.
_MANY = 2
# Partitions that are planned, a plan's work each, until they are as was told. With 4, 61 MLPs on
# hosts of two kinds took 3 % longer, in 0.8 of the time; with 16 as long, in 1.1 of the time.
_TRIES = 8
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
        ranking = Ranking(cut, model, counts, options, deadline, gives_up)
        try:
            return _of_ranking(ranking)
        except _NoneFits as failed:
            counts = tuple(n for n in counts if n > failed.micro_batches)
            if deadline.is_over:
                counts = tuple(n for n in counts if n > _MANY_MORE * failed.micro_batches) or counts
            if not counts or options.budget_seconds is None and not deadline.was_ended:
                raise failed.first from None
        # what was searched in time does not fit; smaller micro-batches may


class _NoneFits(Exception):
    """No planned partition fits: why the first does not, and the micro-batches of the last."""

    def __init__(self, first: ValueError, micro_batches: int) -> None:
        super().__init__(str(first))
        self.first, self.micro_batches = first, micro_batches


def _of_ranking(ranking: Ranking) -> Plan:
    """The fastest plan of the partitions, until the best of them is one that has been planned.

    What stages take and send, or that they do not fit, is known once they are planned; where this
    is not as was told, the partitions are ranked anew.
    """
    deadline, gives_up = ranking.deadline, ranking.gives_up
    planned: dict[tuple[int, Cuts], _Planned] = {}
    failed: list[ValueError] = []
    several: list[Partition] = []
    is_known = False
    while len(planned) + len(failed) < _TRIES:
        try:
            with before("a plan of each stage"):
                ranked = ranking.partitions()
        except ValueError as error:
            failed.append(error)
            break
        if gives_up and deadline.is_over and not planned:
            raise Ended
        several = [chosen for chosen in ranked if len(chosen.stages) > 1]
        if several[:1] != ranked[:1]:
            if not planned:
                raise ValueError("one mesh is faster than any number of stages")
            break
        best = several[0]
        if best.key in planned:
            break
        try:
            gives_up = gives_up or bool(planned)
            found = planned[best.key] = _on_partition(ranking, best, gives_up)
        except ValueError as error:
            failed.append(error)
            continue
        except (Ended, KeyboardInterrupt):
            if not planned:
                raise
            deadline.end()
            break
        if len(planned) == 1:  # by what was told, and at the end by what is known
            _plan_simulated(planned, several, ranking)
        if deadline.is_over or ranking.task is None or found.seconds * (1 - WORTH) <= best.seconds:
            break
        ranking.note(best, found.plan)
        is_known = True
    if is_known:
        _plan_simulated(planned, several, ranking)
    if not planned:
        raise _NoneFits(failed[0], several[0].micro_batches) if several else failed[0]
    return _beside_schemes(min(planned.values(), key=lambda own: own.seconds), ranking)


@dataclass(frozen=True)
class _Planned:
    """The plan of a partition, and those of its stages, with the schemes to be priced."""

    plan: Plan
    stages: tuple[MeshPlan, ...]

    @property
    def seconds(self) -> float:
        return _seconds(self.plan)


def _plan_simulated(
    planned: dict[tuple[int, Cuts], _Planned], several: Sequence[Partition], ranking: Ranking
) -> None:
    """Plan what is simulated to be the fastest, too, if it fits and there is time."""
    task, deadline = ranking.task, ranking.deadline
    if deadline.is_over or task is None or not planned:
        return
    try:
        other = fastest_simulated(several, task, ranking.options.delay)
        if other.key not in planned:
            found = planned[other.key] = _on_partition(ranking, other, gives_up=True)
            ranking.note(other, found.plan)
    except (ValueError, Ended):  # it does not fit
        return
    except KeyboardInterrupt:
        deadline.end()


def _on_partition(ranking: Ranking, chosen: Partition, gives_up: bool) -> _Planned:
    """The stages of a partition, each planned by itself.

    gives_up: Ended after Ctrl-C, which otherwise leaves the stages that follow no time
    Raises ValueError if one of them does not fit the memory, which the parts of a stage share
    evenly.
    """
    prices, options, deadline = ranking.prices, ranking.options, ranking.deadline
    parts, cut, model = chosen.micro_batches, ranking.cut, ranking.model
    limit = model.limit_bytes / options.chunks
    model = replace(model, memory_limit_bytes=limit, overlap=_overlaps(options))
    count = len(chosen.stages) // options.chunks
    held_by = in_flight(options.schedule, count, parts, options.chunks, options.delay)
    evaluations = options.budget_evaluations
    evaluations = evaluations and max(1, round(evaluations / len(chosen.stages)))
    demands = find_demands(cut.graph, as_hints(options.hints))
    found: list[list[MeshPlan]] = []  # of each stage, the fastest by itself first
    for n, (stage, held) in enumerate(zip(chosen.stages, held_by, strict=True)):
        micro = MicroBatches.of(cut.stage(stage.first, stage.last), held, demands)
        own = _on(model, stage)
        known = [plans[0] for plans in found]
        equal = _known(known, micro.graph(parts), demands, own, held, deadline.is_over)
        plans = [equal] if equal is not None else []
        if not plans:
            left = len(chosen.stages) - n
            asked = replace(options, budget_evaluations=evaluations)
            try:
                with before(more(left - 1, "stage")):
                    plans = _at_all_shares(
                        prices, stage, micro, parts, own, asked, deadline, left, gives_up
                    )
            except ValueError as error:
                ranking.refute(chosen, n)
                layers = f"layers {stage.first}-{stage.last - 1} on {stage.place}"
                raise ValueError(f"stage {n} ({layers}): {error}") from error
            if gives_up and deadline.was_ended:
                raise Ended
        found.append(
            [replace(p, stage=p.stage.at(stage.first, stage.last, stage.place)) for p in plans]
        )
    return _fastest_together(found, lambda own: _whole(ranking, parts, own))


def _whole(ranking: Ranking, parts: int, planned: Sequence[MeshPlan]) -> _Planned:
    """The plan of these stages in `parts` micro-batches."""
    graph, layers, options = ranking.cut.graph, ranking.cut.layers, ranking.options
    small = graph.with_batch(graph.batch // parts) if parts > 1 else graph
    stages = tuple(own.stage for own in planned)
    schedule = options.schedule, options.delay, options.chunks
    plan = Plan(CutGraph(small, layers), ranking.model.cluster, stages, (), *schedule)
    return _Planned(plan, tuple(planned))


def _fastest_together(
    found: Sequence[Sequence[MeshPlan]], whole: Callable[[Sequence[MeshPlan]], _Planned]
) -> _Planned:
    """Of the plans of each stage the one with which the pipeline is fastest, stage after stage.

    What a stage sends depends on the shares by which it divides its rows.
    """
    best = whole([plans[0] for plans in found])
    for n, plans in enumerate(found):
        own = best.stages
        ways = [whole([*own[:n], plan, *own[n + 1 :]]) for plan in plans[1:]]
        best = min([best, *ways], key=lambda way: way.seconds)
    return best


def _beside_schemes(found: _Planned, ranking: Ranking) -> Plan:
    """The plan beside the known schemes in the same stages, if there is time; or one of these.

    Equal stages have the same.
    """
    options, deadline = ranking.options, ranking.deadline
    priced: dict[int, MeshPlan] = {}
    planned: list[MeshPlan] = []
    for own in found.stages:
        if own.schemes is not None and not deadline.is_over:
            key, at = id(own.schemes), own.stage
            if key not in priced:
                priced[key] = with_schemes(at, own.schemes, options)
            stage = priced[key].stage.for_equal(at.graph)
            assert stage is not None, "stages with the same schemes are equal"
            stage = replace(stage, in_flight=at.in_flight).at(at.first, at.last, at.place)
            own = replace(priced[key], stage=stage)
        planned.append(own)
    whole = _whole(ranking, found.plan.micro_batches, planned).plan
    rivals = _rivals(whole, planned, options)
    if not rivals:
        return whole
    allowed = [p for r, p in rivals if not r.breaks and (options.zero or "ZeRO" not in r.name)]
    best = min([whole, *filter(None, allowed)], key=_seconds)
    return replace(best, baselines=tuple(record for record, _ in rivals))


def _overlaps(options: PlanOptions) -> bool:
    """Whether gradients travel in buckets: not where the weights' half of a pass comes later.

    That half has no schedule of its own, so it is not known what would run beside it.
    """
    return options.overlap and options.delay is None and options.schedule != "zb-h1"


def _at_all_shares(
    prices: StagePrices,
    stage: Stage,
    micro: MicroBatches,
    parts: int,
    model: CostModel,
    options: PlanOptions,
    deadline: Deadline,
    left: int,
    gives_up: bool,
) -> list[MeshPlan]:
    """The plan of a stage; on hosts of two groups at several shares, the fastest first.

    left: stages that have no plan yet
    """
    if not stage.shape.beyond or options.given_shares is not None:  # even ones
        own = model, options, deadline, left, gives_up
        return [_stage_plan(prices, stage, micro, parts, *own)]
    made: dict[Shares, MeshPlan] = {}
    failed: list[ValueError] = []

    def at(shares: Shares, _: float) -> Plan | None:
        """However slow by itself: what it sends may take less."""
        if made and deadline.is_over:
            return None
        own = replace(model, cluster=model.cluster.with_shares(shares))
        try:
            made[shares] = _stage_plan(
                prices, stage, micro, parts, own, options, deadline, left * TRIES, gives_up
            )
        except ValueError as error:
            failed.append(error)
            return None
        return Plan.on_one_mesh(made[shares].stage)

    graph = micro.graph(parts)
    rows = divided_rows(model.cluster, graph.batch)
    _, plans = best_shares(
        at,
        _seconds,
        lambda plan, limit_bytes: better_shares(plan, rows, limit_bytes),
        starts(model.cluster, graph),
        rows,
        by_experts(model.cluster, graph),
        lambda plan: model.limit_bytes if is_full(plan) else math.inf,
    )
    if not plans:
        raise failed[0]
    return [made[shares] for shares in sorted(plans, key=lambda own: (_seconds(plans[own]), own))]


def _seconds(plan: Plan) -> float:
    return figures(plan).iteration_s


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

    left: plans that are still to be found
    """
    known, few = prices.pair_prices(stage.shape), None
    if known is not None and known.mesh != model.cluster.mesh:
        known = None  # priced at other shares
    if known is not None:
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
            own = model, asked, None, known, few, runs_again
            found = plan_mesh(micro, (parts,), *own, schemes_later=True)
        except KeyboardInterrupt:
            if gives_up or deadline.was_ended:
                raise
            deadline.end()
            continue
        if found.stage.search.end == "interrupted":
            deadline.end()
        return found


def _on(model: CostModel, stage: Stage) -> CostModel:
    """Of the stage's devices; where hosts are not alike they may hold as much more as they have."""
    own = model.cluster.part(stage.place)
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
