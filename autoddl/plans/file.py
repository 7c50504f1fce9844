"""A plan as versioned JSON.

The same inputs and seed give the same bytes: measured times of the search are not in the file. What
follows from the rest is not in it either: a stage's graph is that of its layers, and its cluster
the shape of its place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from .._files import json_number
from ..cluster.spec import Cluster
from ..cluster.submesh import SubMesh
from ..graph.cut import CutGraph
from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.collectives import Step
from ..sbp.placement import NdSbp
from .checks import verify
from .figures import PlanFigures
from .records import PlannedBaseline, PlannedLayer, SearchRecord
from .stage import StagePlan

PLAN_VERSION = 3
# Of all stages alike
_ASKED = ("micro_batches", "seed", "optimizer", "comm_rule", "precision", "back_end")
AnyPlan = TypeVar("AnyPlan", bound=PlanFigures)


def to_json(plan: PlanFigures) -> dict[str, Any]:
    """What the file holds; `from_json` inverts it."""
    return {
        "version": PLAN_VERSION,
        **{name: getattr(plan, name) for name in _ASKED},
        "batch_norm": plan.batch_norm,
        "schedule": plan.schedule_name,
        "delay": plan.delay,
        "chunks": plan.chunks,
        "baselines": [dataclasses.asdict(baseline) for baseline in plan.baselines],
        "cluster": plan.cluster.to_json(),
        "stages": [_stage_json(stage) for stage in plan.stages],
        "cut": [list(layer) for layer in plan.cut.layers],
        "graph": plan.graph.to_json(),
    }


def _stage_json(stage: StagePlan) -> dict[str, Any]:
    place = stage.place
    return {
        "first": stage.first,
        "last": stage.last,
        "place": [place.first_node, place.nodes, place.first_gpu, place.gpus],
        "memory_limit_bytes": json_number(stage.memory_limit_bytes),
        "recomputed": [list(block) for block in stage.recomputed],
        "in_flight": stage.in_flight,
        "search": {
            "algorithm": stage.search.algorithm,
            "evaluations": stage.search.evaluations,
            "lower_bound_s": stage.search.lower_bound_s,
            "end": stage.search.end,
        },
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "topology": layer.topology,
                "signature": layer.signature,
                "alternative": layer.alternative,
                "alternative_extra_s": layer.alternative_extra_s,
                "ops": list(layer.ops),
            }
            for layer in stage.layers
        ],
        "ops": {
            op.name: {
                "ins": _texts(op.ins),
                "outs": _texts(op.outs),
                "grad_outs": _texts(op.grad_outs),
                "grad_ins": _texts(op.grad_ins),
                **({"inner_axes": list(op.inner_axes)} if op.inner_axes else {}),
            }
            for op in stage.ops.values()
        },
        "edges": [
            [
                edge.op,
                edge.index,
                [str(s) for s in edge.forward],
                [str(s) for s in edge.backward],
                *([edge.zero_stage] if edge.zero_stage else []),
            ]
            for edge in stage.edges.values()
        ],
    }


def from_json(kind: type[AnyPlan], data: Mapping[str, Any]) -> AnyPlan:
    """A verified plan. Raises ValueError on another version, and on a file that is not whole."""
    version = data.get("version")
    if version != PLAN_VERSION:
        raise ValueError(
            f"plan version {version!r} is not {PLAN_VERSION}, which this autoddl reads; "
            "plan the model again"
        )
    try:
        cut = CutGraph(Graph.from_json(data["graph"]), tuple(map(tuple, data["cut"])))
        cluster = Cluster.from_json(data["cluster"])
        asked = {name: data[name] for name in _ASKED}
        plan = kind(
            cut=cut,
            cluster=cluster,
            stages=tuple(_stage(own, cut, cluster, asked) for own in data["stages"]),
            baselines=tuple(PlannedBaseline(**b) for b in data["baselines"]),
            schedule_name=data["schedule"],
            delay=data["delay"],
            chunks=data["chunks"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"not a whole plan file ({type(error).__name__}: {error}); plan the model again"
        ) from error
    verify(plan)
    return plan


def _stage(
    data: Mapping[str, Any], cut: CutGraph, cluster: Cluster, asked: Mapping[str, Any]
) -> StagePlan:
    ops = {
        name: PlannedOp(
            name,
            tuple(map(NdSbp.parse, op["ins"])),
            tuple(map(NdSbp.parse, op["outs"])),
            tuple(None if t is None else NdSbp.parse(t) for t in op["grad_outs"]),
            tuple(None if t is None else NdSbp.parse(t) for t in op["grad_ins"]),
            tuple(op.get("inner_axes", ())),
        )
        for name, op in data["ops"].items()
    }
    edges = {
        (op, index): PlannedEdge(
            op,
            index,
            tuple(map(Step.parse, forward)),
            tuple(map(Step.parse, backward)),
            *zero_stage,
        )
        for op, index, forward, backward, *zero_stage in data["edges"]
    }
    first, last, limit = data["first"], data["last"], data["memory_limit_bytes"]
    place = SubMesh(*data["place"])
    graph = cut.stage(first, last).with_forks()
    missing = [op.name for op in graph.ops if op.name not in ops]
    if missing:
        raise ValueError(f"the plan places no operator {missing[0]!r}; plan the model again")
    return StagePlan(
        graph=graph,
        cluster=cluster.with_shape(*place.shape),
        ops=ops,
        edges=edges,
        layers=tuple(
            PlannedLayer(**{**layer, "ops": tuple(layer["ops"])}) for layer in data["layers"]
        ),
        search=SearchRecord(**data["search"]),
        place=place,
        first=first,
        last=last,
        recomputed=tuple(tuple(block) for block in data["recomputed"]),
        in_flight=data["in_flight"],
        memory_limit_bytes=math.inf if limit is None else limit,
        **asked,
    )


def _texts(placements: tuple[NdSbp | None, ...]) -> list[str | None]:
    return [None if nd is None else str(nd) for nd in placements]
