"""What a plan does to save memory, and what each of it saves (bytes) and costs (seconds).

Each is the difference to the same placements without it, by the account (`cost.account`):

    accumulation    all micro-batches at once; not of a pipeline's stage, which would wait then
    split storage   the parameters of a layer stored whole where they are Broadcast (ZeRO, stage 0)
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..cost.account import Cost, account, total
from ..cost.model import CostModel
from ..cost.recompute import Recomputation
from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.redistribute import PathTable
from .stage import StagePlan
from .stage_figures import stage_figures

Key = tuple[str, int]


@dataclass(frozen=True)
class Saving:
    """saved_bytes of one device, for extra_s seconds an iteration."""

    saved_bytes: float
    extra_s: float

    @staticmethod
    def between(without: Cost, with_it: Cost) -> Saving:
        return Saving(
            without.memory_bytes - with_it.memory_bytes, with_it.iteration_s - without.iteration_s
        )


@dataclass(frozen=True)
class Savings:
    """stages: operator -> the largest stage of its parameters; storage: the saving of all of them.

    by_op: operator -> what the storage of its parameters saves, itself or as their reader
    """

    accumulation: Saving | None
    storage: Saving | None
    stages: Mapping[str, int]
    by_op: Mapping[str, Saving]

    @property
    def operators(self) -> Mapping[int, int]:
        """Stage -> the number of operators whose parameters are stored so."""
        return Counter(self.stages.values())

    def to_json(self) -> dict[str, Any]:
        """accumulation, zero: bytes saved and seconds paid; None where there is none of it."""
        zero = None
        if self.storage is not None:
            operators = {str(stage): n for stage, n in sorted(self.operators.items())}
            zero = {**dataclasses.asdict(self.storage), "operators": operators}
        accumulation = self.accumulation and dataclasses.asdict(self.accumulation)
        return {"accumulation": accumulation, "zero": zero}


def savings(stage: StagePlan) -> Savings:
    """Of the plan of a stage, kept with it."""
    return stage.once(_savings)


def _savings(stage: StagePlan) -> Savings:
    # of serial steps, which saving memory makes longer whatever is hidden of them
    stage = dataclasses.replace(stage, buckets=(), waits=())
    graph, known = stage.graph, stage_figures(stage)
    model, costs, accumulation = known.model, known.costs, None
    if stage.micro_batches > 1 and graph.batch and not graph.is_stage:
        try:
            whole_batch = graph.with_batch(stage.batch)
        except ValueError:
            whole_batch = None
        if whole_batch is not None:
            again = Recomputation(whole_batch, stage.recomputed)
            at_once = account(whole_batch, model, 1, stage.ops, stage.edges, again)
            accumulation = Saving.between(total(at_once.values()), known.cost)
    split = list(_split(graph, stage.edges))
    if not split:
        return Savings(accumulation, None, {}, {})
    stored = stored_whole(graph, model, stage.ops, stage.edges)
    whole = account(graph, model, stage.micro_batches, *stored, known.again)
    by_op = {}
    stages: dict[str, int] = {}
    for edge, tensor in split:
        for name in (edge.op, graph.producers[tensor].name):
            by_op[name] = Saving.between(whole[name], costs[name])
        stages[edge.op] = max(stages.get(edge.op, 0), edge.zero_stage)
    storage = Saving.between(total(whole.values()), known.cost)
    return Savings(accumulation, storage, stages, by_op)


def stored_whole(
    graph: Graph,
    model: CostModel,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[Key, PlannedEdge],
) -> tuple[dict[str, PlannedOp], dict[Key, PlannedEdge]]:
    """The plan with every parameter that is stored split by ZeRO stored as its reader needs it."""
    paths = PathTable(model.cluster.mesh, model.comm.price, model.comm.collectives)
    placed, steps = dict(ops), dict(edges)
    for edge, tensor in _split(graph, edges):
        needed, given = ops[edge.op].ins[edge.index], ops[edge.op].grad_ins[edge.index]
        assert given is not None
        param = graph.producers[tensor].name
        placed[param] = dataclasses.replace(placed[param], outs=(needed,), grad_outs=(needed,))
        backward = paths.path(graph.tensors[tensor].spec, given, needed)
        steps[edge.op, edge.index] = PlannedEdge(edge.op, edge.index, (), backward)
    return placed, steps


def _split(graph: Graph, edges: Mapping[Key, PlannedEdge]) -> Iterator[tuple[PlannedEdge, str]]:
    """The edges from parameters that are stored split by ZeRO, with the parameters' tensors."""
    for op in graph.ops:
        for index, tensor in enumerate(op.inputs):
            edge = edges.get((op.name, index))
            if edge is not None and edge.zero_stage:
                yield edge, tensor
