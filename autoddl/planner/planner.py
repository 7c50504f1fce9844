"""The main path: a graph and a cluster to a plan.

`find_plan` lets a search algorithm choose (`batches`: how many micro-batches, and which blocks are
run again), and writes the choice down as placements and steps.

The known schemes (`baselines`) are priced beside every search, each on its best topology, and the
plan records them. Should one of them be faster than what was found, it is the plan.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from ..cluster.spec import Cluster
from ..cluster.submesh import SubMesh
from ..cost.model import CostModel
from ..cost.recompute import Checkpointing
from ..graph.batch_norm import with_batch_norm
from ..graph.cut import CutGraph
from ..graph.graph import Graph
from ..graph.precision import check_precision, in_precision
from ..graph.regions import repeated_blocks
from ..graph.rows import find_rows, in_several
from ..plans import Plan, SearchRecord, StagePlan
from ..plans.format import format_at_least, format_bytes
from ..plans.records import PlannedBaseline
from ..search.algorithms import Algorithm, find_algorithm
from ..search.budget import Budget
from ..search.elimination import free_bound
from .alternatives import next_best
from .baselines import FAMILIES, BaselinePricer, Family, tried_again
from .batches import Batches
from .collector import paused_collector
from .estimate import Estimator
from .fit_in_memory import FittedSearch
from .layers import describe_layers
from .options import DEFAULTS, PlanOptions
from .realize import Candidate
from .smallest import smallest
from .tables.group_table import Space
from .tables.micro_batches import MicroBatches
from .tables.pair_prices import PairPrices

_GAP = 1e-4  # that a search which proves a bound may leave by default: no use to anyone to close


@paused_collector()
def find_plan(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions = DEFAULTS,
    *,
    space: Space | None = None,
) -> Plan:
    """The best plan found for training `graph` (traced with its loss) on one mesh of `cluster`.

    options: without stages
    space:   which strategies are searched; a baseline restricts them. None: what the options say

    Raises ValueError if the batch cannot be cut as asked for, the machine file has no rate for the
    precision, or nothing fits the memory.
    """
    assert options.stages is None, "pipeline stages are planned by find_staged_plan"
    started = time.perf_counter()
    space = space or Space(split_channels=options.split_channels, zero=True)
    if not options.zero:
        space = dataclasses.replace(space, zero=False)
    if not graph.loss and not graph.is_stage:
        raise ValueError(
            "the graph was traced without a loss; trace(..., loss=loss_fn) plans training"
        )
    model = cost_model(cluster, options)
    graph = prepared(graph, options)
    algorithm, seed = find_algorithm(options.search), options.seed
    prices = PairPrices(cluster.mesh, model.comm.price, model.comm.collectives)
    micro = MicroBatches.of(graph)
    counts = micro_batch_counts(graph, options.micro_batches)
    estimator = Estimator(micro, model, space, prices)
    batches = Batches(
        counts, FittedSearch(estimator, algorithm, _budget(options), seed, options.restarts)
    )
    best = batches.best(options.checkpointing)
    pricer: BaselinePricer | None = None
    if options.baselines and space.allowed is None and space.min_weight_shards == 1 and graph.loss:
        again = tried_again(batches.blocks, options.checkpointing)
        pricer = BaselinePricer(micro, counts, model, seed, again)
    rivals = () if pricer is None else pricer.all()
    records = tuple(rival.record for rival in rivals)
    allowed = [rival for rival in rivals if options.zero or "ZeRO" not in rival.record.name]
    nearest = min(allowed, key=lambda rival: rival.seconds, default=None)
    if nearest is not None and nearest.seconds < _cost_to_beat(best):
        assert nearest.found is not None
        spent_s = time.perf_counter() - started
        stage = write_stage(nearest.found, seed, spent_s, nearest.record.name)
        return Plan.on_one_mesh(stage, records)
    if best is None:
        least = smallest(batches, options.checkpointing)
        if least.excess_bytes > 0 or not algorithm.proves_bound:
            rival = pricer and pricer.smallest(least.needed_bytes)
            found = (rival and rival.found) or least
            if not rival or found.needed_bytes > model.limit_bytes:
                raise ValueError(_none_found(graph, model, found, len(counts) > 1, options.search))
            stage = write_stage(found, seed, time.perf_counter() - started, rival.record.name)
            stage = dataclasses.replace(stage, memory_limit_bytes=model.limit_bytes)
            return Plan.on_one_mesh(stage, _with(records, rival.record))
        best = least
    return Plan.on_one_mesh(write_stage(best, seed, time.perf_counter() - started), records)


def _with(
    records: tuple[PlannedBaseline, ...], record: PlannedBaseline
) -> tuple[PlannedBaseline, ...]:
    """The records with this one in its namesake's place."""
    return tuple(record if other.name == record.name else other for other in records)


def cost_model(cluster: Cluster, options: PlanOptions) -> CostModel:
    """What prices plans with these options. ValueError without a rate for their precision."""
    check_precision(options.precision, cluster.device)
    return CostModel(
        cluster,
        options.optimizer,
        options.comm_rule,
        options.memory_limit_bytes,
        options.precision,
        options.back_end,
    )


def _budget(options: PlanOptions) -> Budget:
    seconds, evaluations = options.budget_seconds, options.budget_evaluations
    return Budget(
        math.inf if seconds is None else seconds,
        math.inf if evaluations is None else evaluations,
        _GAP if options.gap is None else options.gap,
    )


def prepared(graph: Graph, options: PlanOptions) -> Graph:
    """A traced graph in the precision and with the statistics of BatchNorm that are asked for."""
    return in_precision(with_batch_norm(graph, options.batch_norm), options.precision)


def micro_graph(graph: Graph, parts: int) -> Graph:
    """The graph of one of `parts` micro-batches, with forks."""
    return (graph.with_batch(graph.batch // parts) if parts > 1 else graph).with_forks()


def micro_batch_counts(graph: Graph, micro_batches: int | None) -> tuple[int, ...]:
    """Numbers of micro-batches to try, ascending.

    ValueError if the given one does not divide the batch, or rows of the batch meet (`rows`).
    """
    if micro_batches is None:
        if graph.batch == 0 or (not graph.is_stage and find_rows(graph).meeting is not None):
            return (1,)
        return tuple(n for n in range(1, graph.batch + 1) if graph.batch % n == 0 and _is_power(n))
    if micro_batches > 1 and (graph.batch == 0 or graph.batch % micro_batches):
        divisors = [n for n in range(1, graph.batch + 1) if graph.batch % n == 0]
        raise ValueError(
            f"a batch of {graph.batch} does not divide into {micro_batches} micro-batches; "
            f"possible numbers: {', '.join(map(str, divisors)) or '1'}"
        )
    if not graph.is_stage:
        find_rows(graph).check(micro_batches)
    return (micro_batches,)


def stage_counts(cut: CutGraph, micro_batches: int | None) -> tuple[int, ...]:
    """`micro_batch_counts` of a model in stages.

    A sum that all micro-batches need before they are trained has to be computed in one stage.
    """
    counts = micro_batch_counts(cut.graph, micro_batches)
    if counts == (1,):
        return counts
    rows = find_rows(cut.graph)
    several = in_several(cut.graph, rows, cut.layer_of)
    if several is None:
        return counts
    if micro_batches is None:
        return (1,)
    raise ValueError(
        f"{several}, which {micro_batches} micro-batches need of the whole batch, is computed in "
        "several layers that stages may hold; train it in 1 micro-batch, or without stages"
    )


def _is_power(n: int) -> bool:
    return n & (n - 1) == 0


def _cost_to_beat(found: Candidate | None) -> float:
    """What a baseline must cost less than; tables in single precision leave a relative error."""
    return float("inf") if found is None else found.result.cost * (1 - 1e-6)


def write_stage(found: Candidate, seed: int, seconds: float, scheme: str = "") -> StagePlan:
    """What was found, as a plan of one mesh.

    seconds: that it took to find
    scheme:  the known scheme that it is; it carries no bound, as nothing else was searched
    """
    tables, result = found.tables, found.result
    ops, edges = found.placed
    model, cluster = tables.model, tables.model.cluster
    if scheme:
        alternatives, search = {}, SearchRecord(f"baseline: {scheme}", 0, seconds=seconds)
    else:
        alternatives = next_best(tables, result.choice, result.memory)
        bound = result.lower_bound
        bound = bound if np.isfinite(bound) else free_bound(tables.problem)
        search = SearchRecord(result.algorithm, result.evaluations, bound, result.end, seconds)
    return StagePlan(
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
        precision=model.precision,
        back_end=model.back_end,
    )


@paused_collector()
def baseline_plans(
    graph: Graph, cluster: Cluster, options: PlanOptions = DEFAULTS
) -> dict[str, tuple[PlannedBaseline, Plan | None]]:
    """Every known scheme on its best topology: its record and, if it fits, its plan, by name.

    The errors are those of `find_plan`.
    """
    model = cost_model(cluster, options)
    graph = prepared(graph, options)
    counts = micro_batch_counts(graph, options.micro_batches)
    return written_baselines(graph, model, counts, options.seed, options.checkpointing)


def written_baselines(
    graph: Graph,
    model: CostModel,
    counts: Sequence[int],
    seed: int = 0,
    checkpointing: Checkpointing = "auto",
    families: Sequence[Family] = FAMILIES,
) -> dict[str, tuple[PlannedBaseline, Plan | None]]:
    """As `baseline_plans`, of `families`, for a graph in the model's precision.

    counts: numbers of micro-batches, ascending
    """
    micro = MicroBatches.of(graph)
    again = tried_again(repeated_blocks(micro.graph(counts[0])), checkpointing)
    pricer = BaselinePricer(micro, counts, model, seed, again, families)
    return {
        rival.record.name: (
            rival.record,
            rival.found
            and Plan.on_one_mesh(write_stage(rival.found, seed, 0.0, rival.record.name)),
        )
        for rival in pricer.all()
    }


def _none_found(
    graph: Graph, model: CostModel, least: Candidate, chose_parts: bool, search: str | Algorithm
) -> str:
    """How much is missing, on which layers, and what would help."""
    tables, limit, needed = least.tables, model.limit_bytes, least.needed_bytes
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
    if not chose_parts and graph.batch > tables.micro_batches:
        helps.insert(0, "more micro-batches")
    again = " and recomputed blocks" if tables.again.blocks else ""
    return (
        f"no plan fits the memory limit of {format_bytes(limit)} a device: the smallest found "
        f"needs {format_at_least(needed)}, {format_bytes(needed - limit)} too much, with "
        f"{tables.micro_batches} micro-batches{again} on {model.cluster}. "
        f"The largest layers are "
        f"{layers}. What would help: {', '.join(helps)}"
    )
