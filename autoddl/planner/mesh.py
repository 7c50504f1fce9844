"""The plan of one mesh: a model's, or that of a stage of a pipeline.

`plan_mesh` lets a search algorithm choose (`batches`: how many micro-batches, and which blocks are
run again), and writes the choice down as placements and steps.

The known schemes (`baselines`) are priced beside every search, each on its best topology. Should
one of them be faster than what was found, it is the plan. Of the plans at several shares of hosts
they are priced beside the best one (`with_schemes`), and where nothing else is found.

Where nothing fits, the refusal names the smallest footprint that is found (`smallest`). With and
without recomputation, and from the most micro-batches down to where fewer need more:

    needed(argmin over choices of  price bytes + seconds),  the price "bytes alone" and a lower one

(`lagrangian.light_choices`), and of these the least. The bytes are added up, and what is needed at
the fullest moment can be more: a choice of the least bytes redistributes much, in buffers, and a
faster one does not. Nothing here depends on the limit, so equal refusals name one number.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..cost.model import CostModel
from ..cost.recompute import Checkpointing
from ..graph.demands import Demands, find_demands
from ..graph.hints import as_hints
from ..graph.regions import Blocks
from ..plans.checks import broken
from ..plans.figures import figures
from ..plans.format import before, format_at_least, format_bytes, format_seconds
from ..plans.plan import Plan
from ..plans.stage import SearchRecord, StagePlan
from ..plans.stage_figures import stage_figures
from ..sbp.mesh import SubMesh
from ..sbp.redistribute import PathTable
from ..search.algorithms import Algorithm, find_algorithm
from ..search.budget import FIRST_PART, Budget, Deadline
from ..search.elimination import eliminate
from ..search.lagrangian import free_bound, light_choices
from ..search.problem import Choice, SearchResult
from .baselines.families import tried_again
from .baselines.pricing import Baseline, BaselinePricer, Schemes, cost_to_beat
from .batches import Batches, overlapped
from .estimate import Estimator
from .fit_in_memory import FittedSearch
from .layers import Alternative, describe_layers, heavy_groups, next_best
from .options import PlanOptions
from .realize import Candidate
from .tables.group_table import NoStrategy, Space
from .tables.groups import MicroBatches
from .tables.pair_prices import PairPrices
from .tables.tables import Few, Tables

_GAP = 1e-4  # that a search which proves a bound may leave by default: no use to anyone to close
# Where the rest takes long to close. Without it, GPT-36B on 256, GPT-0.35B on 2x16 and 2x8, and
# ViT-S, HRNet and EfficientNet-B0 in half of their memory on 2x8 have the same plans, in 0.9 to
# 1.04 of the time; nor did half and twice of it change any of the first two and HRNet.
_LONG_GAP = 5e-4
# Of the bound, where steps overlap: strategies that score more are left out of the serial search.
# With them Mixtral-8x7B on 128x8 takes 108 CPU s, not 27, and 3.1 GB, not 1.1; its step and bound,
# and those of 26 cases of the golden record, are the same.
_MOST_SLACK = 0.01


@dataclass(frozen=True)
class MeshPlan:
    """The plan of a mesh.

    rivals:  the known schemes as they were priced beside it, each at its best
    is_free: nothing was lost to the memory limit
    estimator: of this search; None for a known scheme
    schemes: that are to be priced later
    """

    stage: StagePlan
    rivals: tuple[Baseline, ...]
    is_free: bool = False
    estimator: Estimator | None = None
    schemes: Schemes | None = None


def plan_mesh(
    micro: MicroBatches,
    counts: Sequence[int],
    model: CostModel,
    options: PlanOptions,
    space: Space | None = None,
    prices: PairPrices | None = None,
    few: Few | None = None,
    runs_again: bool = False,
    below_s: float = math.inf,
    unhinted: MeshPlan | None = None,
    schemes_later: bool = False,
) -> MeshPlan:
    """The best plan found for a graph, or a stage's part of it, on `model`'s mesh.

    counts: of micro-batches, ascending; few, runs_again: strategies and blocks of a first plan
    space: as `find_plan` has it; prices: of redistributions on the mesh, if known
    below_s, unhinted: a plan that takes as long is of no use; the plan without the hints
    schemes_later: they are priced only if nothing is found that fits
    Raises ValueError if nothing fits the memory, with what is missing, or nothing is so fast.
    """
    started = time.perf_counter()
    space, seed = _space(space, options), options.seed
    prices = prices or PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)
    overlaps = model.overlap and model.cluster.mesh.num_axes > 0
    estimator = Estimator(micro, model, space, prices, few=few)
    one = _fitted(estimator, options, overlaps)
    batches = Batches(counts, one, math.inf if overlaps else below_s, runs_again=runs_again)
    _begin_with(batches, unhinted)
    has_schemes = options.baselines and _is_whole(space)
    after = "known schemes" if has_schemes and not schemes_later else ""
    best, tried_two = _searched(batches, options, overlaps, after)
    is_late = best is not None and (one.is_over or best.result.end == "interrupted")
    pricer = _pricer(batches, micro, model, options) if has_schemes and not is_late else None
    schemes = pricer and Schemes(pricer, best, tried_two)
    found = best is not None or batches.below_s < math.inf
    later = schemes if schemes_later and found else None
    rivals, best = schemes.all() if schemes and later is None else ((), best)
    rivals = tuple(_marked(rival, micro.demands) for rival in rivals)
    nearest = _fastest(rivals, options)
    if nearest is not None and nearest.seconds < cost_to_beat(best):
        return MeshPlan(_of_scheme(nearest, seed, time.perf_counter() - started), rivals)
    if best is None and batches.below_s < math.inf:
        raise ValueError(f"no plan takes less than {format_seconds(below_s)}")
    if best is None and not model.counts_all:  # what is there only for a moment is much there
        own = micro, counts, replace(model, counts_all=True), options, space, prices, few
        return plan_mesh(*own, runs_again, schemes_later=schemes_later)
    if best is None:
        least = smallest(batches, options.checkpointing)
        if least.excess_bytes > 0 or not one.algorithm.proves_bound:
            rival = pricer and not micro.demands and pricer.smallest(least.needed_bytes)
            found = (rival and rival.found) or least
            if not rival or found.needed_bytes > model.limit_bytes:
                raise ValueError(_none_found(model, found, len(counts) > 1, options.search))
            stage = write_stage(found, seed, time.perf_counter() - started, rival.record.name)
            stage = dataclasses.replace(stage, memory_limit_bytes=model.limit_bytes)
            return MeshPlan(stage, _with(rivals, rival))
        best = batches.with_fewer(least) if options.checkpointing == "auto" else least
    stage = write_stage(best, seed, time.perf_counter() - started)
    return MeshPlan(stage, rivals, _is_free(best, one.budget.gap), estimator, later)


def with_schemes(stage: StagePlan, schemes: Schemes, options: PlanOptions) -> MeshPlan:
    """The plan with the schemes beside it that were to be priced later; the fastest is the plan."""
    rivals, best = schemes.all()
    rivals = tuple(_marked(rival, schemes.pricer.micro.demands) for rival in rivals)
    nearest = _fastest(rivals, options)
    if best is not None and best.result.end == "interrupted":
        stage = stage.as_interrupted()
    if nearest is not None and nearest.seconds < cost_to_beat(best):
        stage = _of_scheme(nearest, options.seed, stage.search.seconds)
    return MeshPlan(stage, rivals)


def _searched(
    batches: Batches, options: PlanOptions, overlaps: bool, after: str
) -> tuple[Candidate | None, bool]:
    """The best plan found, and whether two micro-batches in flight were tried.

    after: what comes then
    """
    with before("overlap" if overlaps else "", after):
        best = batches.best(options.checkpointing)
    if best is None or not overlaps:
        return best, False
    with before(after):
        return overlapped(batches, best, options)


def _fitted(estimator: Estimator, options: PlanOptions, overlaps: bool) -> FittedSearch:
    """The search for a serial plan, with which that for one that overlaps begins."""
    algorithm, slack = find_algorithm(options.search), _MOST_SLACK if overlaps else math.inf
    shared = _budget(options), options.seed, options.restarts
    return FittedSearch(estimator, algorithm, *shared, most_slack=slack)


def _is_free(best: Candidate, gap: float) -> bool:
    return best.result.cost <= best.result.free_cost * (1 + gap)


def _begin_with(batches: Batches, unhinted: MeshPlan | None) -> None:
    """Begin where the best plan without the hints is, if there are hints."""
    if unhinted is None:
        return
    batches.estimator.unhinted = unhinted.estimator
    batches.first = unhinted.stage.micro_batches, bool(unhinted.stage.recomputed)


def _space(space: Space | None, options: PlanOptions) -> Space:
    space = space or Space(split_channels=options.split_channels, zero=True)
    return space if options.zero else dataclasses.replace(space, zero=False)


def _is_whole(space: Space) -> bool:
    """Whether the known schemes are in it."""
    return space.allowed is None and space.min_weight_shards == 1


def _pricer(
    batches: Batches, micro: MicroBatches, model: CostModel, options: PlanOptions
) -> BaselinePricer:
    again = tried_again(batches.blocks, options.checkpointing)
    prices = batches.estimator.prices
    return BaselinePricer(micro, batches.counts, model, options.seed, again, prices=prices)


def plan_hinted(
    micro: MicroBatches,
    counts: Sequence[int],
    model: CostModel,
    options: PlanOptions,
    space: Space | None = None,
) -> tuple[MeshPlan, float]:
    """`plan_mesh` of a whole model with the hints, and the seconds of the plan without.

    That is found first, and where it obeys the hints it is the plan; where memory binds, the plan
    with hints may be the faster one, and then it is both. The known schemes are priced
    in that search alone. Of the second one (`tables.hinted`) much has been priced then.

    Raises ValueError for hints that cannot hold, as `find_demands` and the search do.
    """
    demands = find_demands(micro.whole, as_hints(options.hints))
    prices = PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)
    deadline = Deadline.after(options.budget_seconds)
    asked = replace(options, hints=(), budget_seconds=deadline.budget_s(FIRST_PART))
    with before("the plan with the hints"):
        free = plan_mesh(micro, counts, model, asked, space, prices)
    rivals = tuple(_marked(rival, demands) for rival in free.rivals)
    unhinted_s = _seconds(free)
    stage = free.stage
    if broken(stage.graph, stage.mesh, stage.ops, demands) is None:
        return replace(free, rivals=rivals), unhinted_s
    if free.stage.search.end == "interrupted":
        deadline.end()
    asked = replace(asked, baselines=False, budget_seconds=deadline.budget_s(1.0))
    try:
        hinted = replace(micro, demands=demands)
        found = plan_mesh(hinted, counts, model, asked, space, prices, unhinted=free)
    except NoStrategy:
        raise
    except ValueError as error:
        raise ValueError(
            f"{error}. Without hints there is a plan of {format_seconds(unhinted_s)} an iteration"
        ) from error
    nearest = _fastest(rivals, options)
    if nearest is not None and nearest.seconds < _seconds(found):
        found = MeshPlan(_of_scheme(nearest, options.seed, 0.0), ())
    if deadline.was_ended:
        found = replace(found, stage=found.stage.as_interrupted())
    return replace(found, rivals=rivals), min(unhinted_s, _seconds(found))


def _seconds(found: MeshPlan) -> float:
    return figures(Plan.on_one_mesh(found.stage)).iteration_s


def _of_scheme(scheme: Baseline, seed: int, seconds: float) -> StagePlan:
    """The plan that a known scheme which fits is, found after so many seconds."""
    assert scheme.found is not None
    return write_stage(scheme.found, seed, seconds, scheme.record.name)


def _fastest(rivals: Sequence[Baseline], options: PlanOptions) -> Baseline | None:
    """The fastest known scheme that may be the plan."""
    obeying = (rival for rival in rivals if not rival.record.breaks)
    allowed = [rival for rival in obeying if options.zero or "ZeRO" not in rival.record.name]
    return min(allowed, key=lambda rival: rival.seconds, default=None)


def _marked(rival: Baseline, demands: Demands) -> Baseline:
    """The scheme with the first hint that it does not obey, if there is one."""
    if rival.found is None or not demands:
        return rival
    tables = rival.found.tables
    placed = rival.found.placed[0]
    breaks = broken(tables.grouping.graph, tables.model.cluster.mesh, placed, demands)
    return replace(rival, record=replace(rival.record, breaks=str(breaks[0]) if breaks else ""))


def _with(rivals: tuple[Baseline, ...], rival: Baseline) -> tuple[Baseline, ...]:
    """The known schemes with this one in its namesake's place."""
    return tuple(rival if other.record.name == rival.record.name else other for other in rivals)


def _budget(options: PlanOptions) -> Budget:
    seconds, evaluations = options.budget_seconds, options.budget_evaluations
    return Budget(
        math.inf if seconds is None else seconds,
        math.inf if evaluations is None else evaluations,
        *((_GAP, _LONG_GAP) if options.gap is None else (options.gap, 0.0)),
    )


def write_stage(found: Candidate, seed: int, seconds: float, scheme: str = "") -> StagePlan:
    """The plan of one mesh that a candidate stands for.

    seconds: that it took to find
    scheme:  the known scheme that it is; it carries no bound, as nothing else was searched
    """
    tables, result = found.tables, found.result
    ops, edges = found.placed[0], found.edges
    model, cluster = tables.model, tables.model.cluster
    if scheme:
        alternatives, search = {}, SearchRecord(f"baseline: {scheme}", 0, seconds=seconds)
    else:
        alternatives = _alternatives(found)
        bound = result.lower_bound
        if not np.isfinite(bound):
            bound = None if model.overlap else free_bound(tables.problem)
        search = SearchRecord(result.algorithm, result.evaluations, bound, result.end, seconds)
    stage = StagePlan(
        graph=tables.grouping.graph,
        cluster=cluster,
        micro_batches=tables.micro_batches,
        seed=seed,
        optimizer=model.optimizer,
        comm_rule=model.comm_rule,
        memory_limit_bytes=model.limit_bytes,
        ops=ops,
        edges=edges,
        layers=describe_layers(tables, ops, alternatives),
        search=search,
        place=SubMesh(0, cluster.nodes, 0, cluster.gpus_per_node),
        recomputed=tables.again.blocks,
        in_flight=tables.again.in_flight,
        precision=model.precision,
        back_end=model.back_end,
        buckets=found.travel[0],
        waits=found.travel[1],
        shares=cluster.shares,
        turns=found.turns,
        ema=model.ema,
    )
    stage_figures(stage).know(found.step, found.maker)
    return stage


def _alternatives(found: Candidate) -> dict[int, Alternative]:
    """The next best topology of each layer that is placed as where the candidate is from."""
    first = found.first or found
    every = next_best(first.tables, first.result.choice, first.result.memory)
    if found.first is None:
        return every
    (was, _), (now, _) = first.placed, found.placed
    return {
        group: every[group]
        for group, op in heavy_groups(found.tables)
        if group in every and was[op.name] == now[op.name]
    }


def _none_found(
    model: CostModel, least: Candidate, chose_parts: bool, search: str | Algorithm
) -> str:
    """How much is missing, on which layers, and what would help."""
    tables, limit, needed = least.tables, model.limit_bytes, least.needed_bytes
    graph, held = tables.grouping.graph, tables.again.in_flight
    if needed <= limit:
        return (
            f"the search {search!r} found no plan within the memory limit of {format_bytes(limit)} "
            f"a device, but there is one of {format_at_least(needed)}; give it a larger budget, or "
            "search with 'auto'"
        )
    sizes = [
        (tables.memory_of(least.result.choice, number), group.head)
        for number, group in enumerate(tables.grouping.groups)
    ]
    largest = sorted(sizes, key=lambda item: -item[0])[:3]
    layers = ", ".join(f"{op.module or op.name} {format_bytes(size)}" for size, op in largest)
    helps = ["more devices", "devices with more memory", "an optimizer with less state"]
    if graph.is_stage:
        helps.insert(0, "more stages")
    if not chose_parts and graph.batch > 1:
        helps.insert(0, "more micro-batches")
    again = " and recomputed blocks" if tables.again.blocks else ""
    in_flight = f", {held} of them in flight" if held > 1 else ""
    return (
        f"no plan fits the memory limit of {format_bytes(limit)} a device: the smallest found "
        f"needs {format_at_least(needed)}, {format_bytes(needed - limit)} too much, with "
        f"{tables.micro_batches} micro-batches{in_flight}{again} on {model.cluster}. "
        f"The largest layers are "
        f"{layers}. What would help: {', '.join(helps)}"
    )


def smallest(batches: Batches, checkpointing: Checkpointing) -> Candidate:
    """What needs the least memory, whatever it costs, whether or not it fits.

    batches: that found nothing
    """
    families: list[Blocks] = [()] if checkpointing != "all" else []
    if checkpointing != "none" and batches.blocks:
        families.insert(0, batches.blocks)
    least: Candidate | None = None
    for blocks in families:
        least = _least_of(batches, blocks, least)
    assert least is not None
    model = batches.estimator.model
    problem = dataclasses.replace(least.tables.problem, memory_limit=model.limit_bytes)
    tables = dataclasses.replace(least.tables, model=model, problem=problem)
    return Candidate(tables, least.result, least.paths)


def _least_of(batches: Batches, blocks: Blocks, least: Candidate | None) -> Candidate | None:
    """At the best number of micro-batches, recomputing `blocks`; or `least`, if it needs less."""
    free = dataclasses.replace(batches.estimator.model, memory_limit_bytes=math.inf)
    estimator = dataclasses.replace(batches.estimator, model=free)
    for parts in reversed(batches.counts):
        if least is not None and estimator.least_bytes(parts, blocks) >= least.needed_bytes:
            break
        try:
            tables = estimator.builder(parts, blocks).tables_within_limit()
        except NoStrategy:  # so small a micro-batch cannot be divided as the space asks
            if parts == batches.counts[0] and least is None:
                raise
            continue
        assert tables is not None  # there is no limit
        found = _lightest(tables, estimator.prices.paths, least)
        if found is least:  # fewer micro-batches need more
            break
        least = found
    return least


def _lightest(tables: Tables, paths: PathTable, least: Candidate | None) -> Candidate | None:
    """The choice that needs least of those at high prices of memory; `least`, if it needs less."""
    problem = tables.problem

    def solve(price: float) -> Choice:
        return eliminate(problem, price, frozenset()).expand_greedily()

    for choice in light_choices(problem, solve):
        cost, memory = problem.evaluate(choice)
        if least is not None and memory >= least.needed_bytes:
            break
        result = SearchResult(choice, cost, memory, 1, "least memory")
        found = Candidate(tables, result, paths)
        if least is None or found.needed_bytes < least.needed_bytes:
            least = found
    return least
