"""Finds a plan with pipeline stages: prices, partition, then a search for each stage.

`find_staged_plan` chooses cuts, sub-meshes, the number of stages and of micro-batches jointly
(`planner.stages.partition` over `stage_prices`), searching what is chosen anew until that changes
nothing, and then plans every stage's own graph on its own mesh (`stage_plan`). Stages of equal
layers on equal meshes have one plan under several names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ...cluster.spec import Cluster
from ...cost.model import CostModel
from ...graph.cut import CutGraph, cut_graph
from ...graph.graph import Graph
from ...graph.regions import repeated_blocks
from ...graph.rows import find_rows, why_whole
from ...plans import Plan, StagePlan
from ...plans.schedule.make import make_schedule
from ...plans.schedule.simulate import peak_stash
from ...plans.stage_figures import stage_figures
from ..options import INTERLEAVED, PlanOptions
from ..planner import cost_model, find_plan, micro_graph, prepared, stage_counts
from .interleave import interleaved_partition
from .partition import Partition, Stage, Task, in_flight, partitions
from .stage_plan import plan_stage
from .stage_prices import LARGE, StagePrices

MOST_STAGES = 16
MOST_LAYERS = 96
_TOLERANCE = 0.01  # of the partition's time; its prices are not more exact
_CANDIDATES = 4
_MANY = 2  # repeated blocks a stage: enough to cut between them only
_REFINEMENTS = 6


def find_staged_plan(
    graph: Graph, cluster: Cluster, options: PlanOptions, *, most_layers: int = MOST_LAYERS
) -> Plan:
    """The best plan found in the stages of `options`; or in as many as pay.

    Raises ValueError if there are more stages than layers or devices, the micro-batches do not
    divide the batch, or nothing fits the memory.
    """
    model = cost_model(cluster, options)
    traced, graph = graph, prepared(graph, options)
    stages = None if options.stages == "auto" else options.stages
    schedule, delay = options.schedule, options.delay
    blocks = len(repeated_blocks(graph))
    if blocks >= _MANY * MOST_STAGES:
        most_layers = min(most_layers, blocks)
    cut = cut_graph(graph, most_layers)
    most = min(MOST_STAGES, len(cut.layers), cluster.num_devices) if stages is None else stages
    counts = stage_counts(cut, options.micro_batches)
    # a delayed weight gradient keeps what a block that is run again would have forgotten
    recompute = delay is None and schedule != "zb-h1"
    if schedule == INTERLEAVED:
        assert stages is not None
        prices = StagePrices(cut, model, counts, recompute=recompute, zero=options.zero)
        return _plan_interleaved(prices, stages, counts, options)
    prices = StagePrices(cut, model, counts, schedule, recompute, options.zero)
    task = Task(
        len(cut.layers),
        cluster.nodes,
        cluster.gpus_per_node,
        model.limit_bytes,
        prices.price,
        prices.transfer,
        schedule,
        stages,
        most,
        tolerance=_TOLERANCE,
        times=prices.times,
        transfers=prices.transfers,
    )
    few = counts
    if cluster.num_devices <= LARGE:
        # each is searched; with more there are fewer than an eighth of the bubbles
        few = tuple(n for n in counts if n <= 8 * most) or counts
    ranked = _ranked(task, prices, few, counts)
    failed: ValueError | None = None
    for candidate in ranked[:_CANDIDATES]:
        try:
            if len(candidate.stages) == 1 and stages is None:
                whole = options.on_one_mesh()
                return find_plan(
                    traced,
                    cluster,
                    dataclasses.replace(whole, micro_batches=candidate.micro_batches),
                )
            held = _in_flight(schedule, candidate, delay)
            return _plan_stages(prices, candidate, held, options)
        except ValueError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _ranked(
    task: Task, prices: StagePrices, counts: Sequence[int], others: Sequence[int]
) -> list[Partition]:
    """The partitions, the best first: its stages have been searched in its micro-batches.

    Those searched in more do not show how well fewer, larger ones would do, nor those in fewer
    anything of more, so of the best its neighbours are searched as well, and if it runs blocks
    again, also as many as might do without.
    """
    refined = 0
    while True:
        ranked = sorted(_some(task, counts, others), key=lambda p: (p.seconds, len(p.stages)))
        best = ranked[0].micro_batches
        shapes = sorted({stage.shape for stage in ranked[0].stages})
        near = [n for n in others if n != best and best / 2 <= n <= best * 2]
        if any(stage.price.work_bytes > 0 for stage in ranked[0].stages):
            keeping = {prices.keeping_count(shape) for shape in shapes}
            near += [n for n in others if n in keeping and n not in (best, *near)]
        for count in (best, *near):
            anew = [prices.refine(shape, count) for shape in shapes]
            refined += any(anew)
            if any(anew):
                break
        else:
            return ranked
        if refined == _REFINEMENTS:
            return sorted(_some(task, counts, others), key=lambda p: (p.seconds, len(p.stages)))


def _some(task: Task, counts: Sequence[int], others: Sequence[int]) -> list[Partition]:
    """The partitions with `counts` micro-batches; if there are none, those with `others`."""
    try:
        return partitions(task, counts)
    except ValueError:
        if tuple(counts) == tuple(others):
            raise
        return partitions(task, others)


def _in_flight(schedule: str, chosen: Partition, delay: int | None) -> list[int]:
    """Per stage, the forward passes that it holds."""
    count, parts = len(chosen.stages), chosen.micro_batches
    held = [in_flight(schedule, count - n, count, parts) for n in range(count)]
    return [min(n + (delay or 0), parts) for n in held]


def _plan_interleaved(
    prices: StagePrices, stages: int, counts: Sequence[int], options: PlanOptions
) -> Plan:
    cut, cluster, chunks = prices.cut, prices.model.cluster, options.chunks
    possible = [m for m in counts if m % stages == 0]
    meeting = find_rows(cut.graph).meeting
    if not possible and meeting is not None:
        raise ValueError(why_whole(meeting, f"in groups of {stages} micro-batches"))
    if not possible:
        raise ValueError(
            f"{INTERLEAVED} takes its micro-batches in groups of one a stage: "
            f"{' or '.join(map(str, counts))} micro-batches do not divide by {stages} stages"
        )
    found = [
        interleaved_partition(
            len(cut.layers), cluster.nodes, cluster.gpus_per_node, stages, chunks, m, prices.price
        )
        for m in possible
    ]
    failed: ValueError | None = None
    for chosen in sorted(found, key=lambda p: p.seconds)[:_CANDIDATES]:
        passes = make_schedule(
            INTERLEAVED, stages, chosen.micro_batches, chunks=chunks, delay=options.delay
        ).actions
        # the most that each part holds; a stage's parts share its memory evenly
        held = [
            int(peak_stash(passes[v % stages], [float(c == v // stages) for c in range(chunks)]))
            for v in range(stages * chunks)
        ]
        try:
            return _plan_stages(prices, chosen, held, options)
        except ValueError as error:
            failed = failed or error
    assert failed is not None
    raise failed


def _plan_stages(
    prices: StagePrices, chosen: Partition, held: Sequence[int], options: PlanOptions
) -> Plan:
    """held: per part, the forward passes in flight"""
    parts, cut, model = chosen.micro_batches, prices.cut, prices.model
    model = dataclasses.replace(model, memory_limit_bytes=model.limit_bytes / options.chunks)
    small = cut.graph.with_batch(cut.graph.batch // parts) if parts > 1 else cut.graph
    micro = CutGraph(small, cut.layers)
    planned: list[StagePlan] = []
    for n, stage in enumerate(chosen.stages):
        graph = cut.stage(stage.first, stage.last)
        plan = _known(planned, graph, stage, model, held[n], parts)
        if plan is None:
            try:
                plan = plan_stage(
                    graph,
                    dataclasses.replace(model, cluster=model.cluster.with_shape(*stage.shape)),
                    parts,
                    held[n],
                    options,
                    recompute=stage.price.work_bytes > 0,
                    prices=prices.pair_prices(stage.shape),
                )
            except ValueError as error:
                raise ValueError(
                    f"stage {n} (layers {stage.first}-{stage.last - 1} on {stage.place}): {error}"
                ) from error
        planned.append(plan.at(stage.first, stage.last, stage.place))
    return Plan(
        micro,
        model.cluster,
        tuple(planned),
        (),
        options.schedule,
        options.delay,
        options.chunks,
    )


def _known(
    planned: Sequence[StagePlan],
    graph: Graph,
    stage: Stage,
    model: CostModel,
    held: int,
    parts: int,
) -> StagePlan | None:
    """The plan of an earlier stage with the same layers under other names, if its memory fits."""
    micro = micro_graph(graph, parts)
    for other in planned:
        if other.place.nodes == stage.place.nodes and other.place.gpus == stage.place.gpus:
            plan = other.for_equal(micro)
            if (
                plan is not None
                and stage_figures(plan).price.memory_bytes(held) <= model.limit_bytes
            ):
                return plan
    return None
