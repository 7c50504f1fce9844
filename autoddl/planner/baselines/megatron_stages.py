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

from ...cost.model import CostModel
from ...cost.recompute import Checkpointing
from ...graph.cut import CutGraph, cut_graph
from ...graph.graph import Graph
from ...graph.precision import in_precision
from ...graph.regions import repeated_blocks
from ...plans.figures import figures
from ...plans.format import before, more
from ...plans.plan import Plan
from ...plans.schedule.orders import in_flight
from ...plans.stage import StagePlan
from ...sbp.mesh import SubMesh
from ..asked import stage_counts
from ..mesh import plan_mesh, write_stage
from ..options import PlanOptions
from ..stages.choice import MOST_STAGES
from ..tables.groups import MicroBatches
from . import FAMILIES, BaselinePricer, tried_again

MEGATRON = tuple(family for family in FAMILIES if family.name == "Megatron")
SCHEDULE = "1f1b"
PER_STAGE = 4  # micro-batches to start from; 2 and 8 gave the same of a small GPT on 2x2, as fast


@dataclass(frozen=True)
class StagedBaseline:
    """The fastest pipeline and the topology of each of its stages."""

    plan: Plan
    topologies: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Predicted seconds of an iteration."""
        return figures(self.plan).iteration_s


def megatron_in_stages(
    graph: Graph, model: CostModel, micro_batches: int | None = None, seed: int = 0
) -> StagedBaseline | None:
    """The fastest; None if the blocks divide over no number of stages, or nothing fits.

    Also where hosts are not alike, for which Megatron has no equal stages.

    micro_batches: if they are given; the errors are those of `planner.find_plan`
    """
    graph = in_precision(graph, model.precision)
    blocks = repeated_blocks(graph)
    best: StagedBaseline | None = None
    numbers = tuple(_numbers(len(blocks), model))
    for tried, stages in enumerate(numbers, start=1):
        cut = even_cut(graph, blocks, stages)
        places = equal_parts(model.cluster.nodes, model.cluster.gpus_per_node, stages)

        def at(
            parts: int, cut: CutGraph = cut, places: tuple[SubMesh, ...] = places
        ) -> StagedBaseline | None:
            return on_cut(cut, places, model, parts, seed)

        with before(more(len(numbers) - tried, "number of stages", "numbers of stages")):
            found = climb(at, stage_counts(cut, micro_batches), PER_STAGE * stages)
        if found is not None and (best is None or found.seconds < best.seconds):
            best = found
    return best


def _numbers(blocks: int, model: CostModel) -> Iterator[int]:
    """The numbers of stages over which blocks and devices divide."""
    cluster = model.cluster
    for stages in range(2, min(MOST_STAGES, blocks, cluster.num_devices) + 1):
        if cluster.groups:
            return
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
            if best and found and found.seconds >= best.seconds:
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
    held = in_flight(SCHEDULE, len(places), parts)
    planned: list[tuple[StagePlan, str]] = []
    for n, place in enumerate(places):
        micro = MicroBatches.of(cut.stage(n, n + 1), held[n])
        found = _known(planned, micro.graph(parts), place, held[n]) or stage_in_memory(
            micro, _on(model, place), parts, seed, checkpointing
        )
        if found is None:
            return None
        planned.append((found[0].at(n, n + 1, place), found[1]))
    small = CutGraph(cut.graph.with_batch(cut.graph.batch // parts), cut.layers)
    plan = Plan(small, model.cluster, tuple(own for own, _ in planned), (), SCHEDULE)
    return StagedBaseline(plan, tuple(topology for _, topology in planned))


def _on(model: CostModel, place: SubMesh) -> CostModel:
    cluster = model.cluster.with_shape(place.nodes, place.gpus)
    return dataclasses.replace(model, cluster=cluster)


def _known(
    planned: Sequence[tuple[StagePlan, str]], graph: Graph, place: SubMesh, held: int
) -> tuple[StagePlan, str] | None:
    """The plan of an earlier stage whose operators are the same but for their names.

    Later stages hold fewer micro-batches, so what fits an earlier one fits them.
    """
    for other, topology in planned:
        if other.place.mesh == place.mesh and other.in_flight >= held:
            plan = other.for_equal(graph)
            if plan is not None:
                return dataclasses.replace(plan, in_flight=held), topology
    return None


def stage_in_memory(
    micro: MicroBatches,
    model: CostModel,
    parts: int,
    seed: int = 0,
    checkpointing: Checkpointing = "auto",
) -> tuple[StagePlan, str] | None:
    """Megatron's best plan of a stage and its topology; None if none fits."""
    if model.cluster.num_devices == 1:  # only recomputation is open
        alone = PlanOptions(seed=seed, zero=False, baselines=False, checkpointing=checkpointing)
        try:
            return plan_mesh(micro, (parts,), model, alone).stage, "one device"
        except ValueError:
            return None  # it does not fit
    again = tried_again(repeated_blocks(micro.graph(parts)), checkpointing)
    (best,) = BaselinePricer(micro, (parts,), model, seed, again, MEGATRON).all()
    if best.found is None:
        return None
    return write_stage(best.found, seed, 0.0, best.record.name), best.record.topology
