"""Megatron with pipeline stages, as a baseline (Narayanan et al., SC 2021; AutoDDL section 5.4).

The model's repeated blocks are dealt out evenly to p stages on equal parts of the cluster, which
run 1F1B; what comes before the blocks lies on the first stage, what comes after them on the last.
Every stage has Megatron's data x tensor topology that is best for it within the memory, with its
micro-batches in flight; Megatron itself has one topology for all stages, a difference in its
favour. Numbers of stages are tried from two on, and micro-batches by steps up and down from four a
stage, as long as they pay. `megatron_in_stages` gives the fastest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...cluster.submesh import SubMesh
from ...cost.model import CostModel
from ...cost.recompute import Checkpointing
from ...graph.cut import CutGraph, cut_graph
from ...graph.graph import Graph
from ...graph.precision import in_precision
from ...graph.regions import repeated_blocks
from ...plans import Plan, StagePlan
from ...plans.figures import figures
from ...plans.stage_figures import stage_figures
from ..options import PlanOptions
from ..planner import micro_graph, stage_counts, written_baselines
from ..stages.partition import in_flight
from ..stages.stage_plan import plan_stage
from . import FAMILIES

MEGATRON = tuple(family for family in FAMILIES if family.name == "Megatron")
SCHEDULE = "1f1b"
MOST_STAGES = 16
PER_STAGE = 4  # micro-batches to start from
NARROWINGS = 8
_CLOSE = 0.03  # of the limit


@dataclass(frozen=True)
class StagedBaseline:
    """The fastest pipeline and the topology of each of its stages."""

    plan: Plan
    topologies: tuple[str, ...]


def megatron_in_stages(
    graph: Graph, model: CostModel, micro_batches: int | None = None, seed: int = 0
) -> StagedBaseline | None:
    """The fastest; None if the blocks divide over no number of stages, or nothing fits.

    micro_batches: if they are given; the errors are those of `planner.find_plan`
    """
    graph = in_precision(graph, model.precision)
    blocks = repeated_blocks(graph)
    best: StagedBaseline | None = None
    for stages in _numbers(len(blocks), model):
        cut = even_cut(graph, blocks, stages)
        places = equal_parts(model.cluster.nodes, model.cluster.gpus_per_node, stages)

        def at(
            parts: int, cut: CutGraph = cut, places: tuple[SubMesh, ...] = places
        ) -> StagedBaseline | None:
            return on_cut(cut, places, model, parts, seed)

        found = climb(at, stage_counts(cut, micro_batches), PER_STAGE * stages)
        if found is not None and (
            best is None or figures(found.plan).iteration_s < figures(best.plan).iteration_s
        ):
            best = found
    return best


def _numbers(blocks: int, model: CostModel) -> Iterator[int]:
    """The numbers of stages over which blocks and devices divide."""
    cluster = model.cluster
    for stages in range(2, min(MOST_STAGES, blocks, cluster.num_devices) + 1):
        if blocks % stages == 0 and equal_parts(cluster.nodes, cluster.gpus_per_node, stages):
            yield stages


def equal_parts(nodes: int, gpus_per_node: int, stages: int) -> tuple[SubMesh, ...]:
    """Whole hosts, or equal parts of hosts; () if the cluster does not divide so."""
    if nodes % stages == 0:
        hosts = nodes // stages
        return tuple(SubMesh(n * hosts, hosts, 0, gpus_per_node) for n in range(stages))
    each, rest = divmod(stages, nodes)
    if rest or gpus_per_node % each:
        return ()
    gpus = gpus_per_node // each
    return tuple(SubMesh(n // each, 1, n % each * gpus, gpus) for n in range(stages))


def even_cut(graph: Graph, blocks: Sequence[Sequence[str]], stages: int) -> CutGraph:
    """One layer a stage, each of equally many blocks."""
    names = [name for layer in cut_graph(graph).layers for name in layer]
    place = {name: n for n, name in enumerate(names)}
    each = len(blocks) // stages
    firsts = [
        min(place[name] for name in blocks[n * each] if name in place) for n in range(1, stages)
    ]
    bounds = [0, *firsts, len(names)]
    layers = (tuple(names[a:b]) for a, b in zip(bounds, bounds[1:], strict=False))
    return CutGraph(graph, tuple(layers))


def climb(
    at: Callable[[int], StagedBaseline | None], counts: Sequence[int], start: int
) -> StagedBaseline | None:
    """The best number of micro-batches: more as long as that is faster, else fewer."""
    first = next((n for n, count in enumerate(counts) if count >= start), len(counts) - 1)
    best, moved = at(counts[first]), False
    for step in (1, -1):
        n = first + step
        if moved:
            break
        while 0 <= n < len(counts):
            found = at(counts[n])
            # more micro-batches may fit where fewer do not
            if found is None and best is not None:
                break
            if best and found and figures(found.plan).iteration_s >= figures(best.plan).iteration_s:
                break
            best, moved, n = found or best, moved or found is not None, n + step
    return best


def on_cut(
    cut: CutGraph,
    places: Sequence[SubMesh],
    model: CostModel,
    parts: int,
    seed: int = 0,
    checkpointing: Checkpointing = "auto",
) -> StagedBaseline | None:
    """Each layer of `cut` a stage, at its best in `parts` micro-batches; None if one is too big.

    checkpointing: "none" runs no block again
    """
    planned: list[StagePlan] = []
    topologies: list[str] = []
    for n, place in enumerate(places):
        held = in_flight(SCHEDULE, len(places) - n, len(places), parts)
        stage = cut.stage(n, n + 1)
        found = _known(planned, topologies, stage, place, parts) or stage_in_memory(
            stage, _on(model, place), parts, held, seed, checkpointing
        )
        if found is None:
            return None
        planned.append(found[0].at(n, n + 1, place))
        topologies.append(found[1])
    micro = CutGraph(cut.graph.with_batch(cut.graph.batch // parts), cut.layers)
    plan = Plan(micro, model.cluster, tuple(planned), (), SCHEDULE)
    return StagedBaseline(plan, tuple(topologies))


def _on(model: CostModel, place: SubMesh) -> CostModel:
    cluster = model.cluster.with_shape(place.nodes, place.gpus)
    return dataclasses.replace(model, cluster=cluster)


def _known(
    planned: Sequence[StagePlan],
    topologies: Sequence[str],
    stage: Graph,
    place: SubMesh,
    parts: int,
) -> tuple[StagePlan, str] | None:
    """Of an earlier stage that differs in names alone; later ones hold fewer micro-batches."""
    micro = micro_graph(stage, parts)
    for other, topology in zip(planned, topologies, strict=True):
        if other.place.mesh == place.mesh:
            plan = other.for_equal(micro)
            if plan is not None:
                return plan, topology
    return None


def stage_in_memory(
    graph: Graph,
    model: CostModel,
    parts: int,
    held: int,
    seed: int = 0,
    checkpointing: Checkpointing = "auto",
) -> tuple[StagePlan, str] | None:
    """Megatron's best plan of a stage and its topology; None if none fits.

    Running blocks again and not are tried apart, as one fits where the other does not.
    """
    if model.cluster.num_devices == 1:
        return _alone(graph, model, parts, held, seed, checkpointing)
    each: tuple[Checkpointing, ...] = ("none", "all")
    if checkpointing != "auto":
        each = (checkpointing,)
    found = [_in_memory(graph, model, parts, held, seed, own) for own in each]
    return min(
        filter(None, found),
        key=lambda plan: stage_figures(plan[0]).cost.iteration_s,
        default=None,
    )


def _in_memory(
    graph: Graph, model: CostModel, parts: int, held: int, seed: int, checkpointing: Checkpointing
) -> tuple[StagePlan, str] | None:
    """The plan of the highest limit found at which all `held` micro-batches in flight fit.

    The limit falls in proportion to what is missing, and rises again halfway.
    """
    whole = limit = model.limit_bytes
    low, high = 0.0, whole  # limits: of a plan that fits or of none at all, of one that does not
    best = None
    for _ in range(NARROWINGS):
        narrowed = dataclasses.replace(model, memory_limit_bytes=limit)
        ((record, plan),) = written_baselines(
            graph, narrowed, (parts,), seed, checkpointing, MEGATRON
        ).values()
        needed = 0.0 if plan is None else stage_figures(plan.stage).price.memory_bytes(held)
        if plan is not None and needed > whole:
            high = min(limit, figures(plan).cost.memory_bytes)
        else:
            low = limit
            best = best if plan is None else (plan.stage, record.topology)
        if high - low < _CLOSE * whole:
            break
        limit = (low + high) / 2 if low > 0 else high * min(whole / needed, 0.99)
    return best


def _alone(
    graph: Graph,
    model: CostModel,
    parts: int,
    held: int,
    seed: int,
    checkpointing: Checkpointing,
) -> tuple[StagePlan, str] | None:
    """On one device only recomputation is open."""
    for recompute in (False,) if checkpointing == "none" else (False, True):
        try:
            whole = PlanOptions(seed=seed, zero=False)
            plan = plan_stage(graph, model, parts, held, whole, recompute=recompute)
        except ValueError:
            continue  # it does not fit
        return plan, "one device"
    return None
