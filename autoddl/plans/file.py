"""A plan as versioned JSON.

The same inputs and seed give the same bytes: measured times of the search are not in the file.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from .._files import json_number
from ..cluster.spec import Cluster
from ..graph.graph import Graph
from ..graph.placed import PlannedBaseline, PlannedEdge, PlannedLayer, PlannedOp
from ..sbp.collectives import Step
from ..sbp.placement import NdSbp
from .checks import verify
from .figures import PlanFigures
from .search_record import SearchRecord

PLAN_VERSION = 1
AnyPlan = TypeVar("AnyPlan", bound=PlanFigures)


def to_json(plan: PlanFigures) -> dict[str, Any]:
    """What the file holds; `from_json` inverts it."""
    return {
        "version": PLAN_VERSION,
        "seed": plan.seed,
        "optimizer": plan.optimizer,
        "comm_rule": plan.comm_rule,
        "memory_limit_bytes": json_number(plan.memory_limit_bytes),
        "micro_batches": plan.micro_batches,
        "precision": plan.precision,
        "back_end": plan.back_end,
        "batch_norm": plan.batch_norm,
        "recomputed": [list(block) for block in plan.recomputed],
        "search": {
            "algorithm": plan.search.algorithm,
            "evaluations": plan.search.evaluations,
            "lower_bound_s": plan.search.lower_bound_s,
            "end": plan.search.end,
        },
        "baselines": [dataclasses.asdict(baseline) for baseline in plan.baselines],
        "cluster": plan.cluster.to_json(),
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
            for layer in plan.layers
        ],
        "ops": {
            op.name: {
                "ins": _texts(op.ins),
                "outs": _texts(op.outs),
                "grad_outs": _texts(op.grad_outs),
                "grad_ins": _texts(op.grad_ins),
                **({"inner_axes": list(op.inner_axes)} if op.inner_axes else {}),
            }
            for op in plan.ops.values()
        },
        "edges": [
            [
                edge.op,
                edge.index,
                [str(s) for s in edge.forward],
                [str(s) for s in edge.backward],
                *([edge.zero_stage] if edge.zero_stage else []),
            ]
            for edge in plan.edges.values()
        ],
        "graph": plan.graph.to_json(),
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
        layers = tuple(
            PlannedLayer(**{**layer, "ops": tuple(layer["ops"])}) for layer in data["layers"]
        )
        limit = data["memory_limit_bytes"]
        plan = kind(
            graph=Graph.from_json(data["graph"]),
            cluster=Cluster.from_json(data["cluster"]),
            micro_batches=data["micro_batches"],
            seed=data["seed"],
            optimizer=data["optimizer"],
            comm_rule=data["comm_rule"],
            memory_limit_bytes=math.inf if limit is None else limit,
            ops=ops,
            edges=edges,
            layers=layers,
            search=SearchRecord(**data["search"]),
            baselines=tuple(PlannedBaseline(**b) for b in data.get("baselines", ())),
            precision=data.get("precision", "float32"),
            back_end=data.get("back_end", "oneflow"),
            recomputed=tuple(tuple(block) for block in data.get("recomputed", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"not a whole plan file ({type(error).__name__}: {error}); plan the model again"
        ) from error
    missing = [op.name for op in plan.graph.ops if op.name not in plan.ops]
    if missing:
        raise ValueError(f"the plan places no operator {missing[0]!r}; plan the model again")
    verify(plan)
    return plan


def _texts(placements: tuple[NdSbp | None, ...]) -> list[str | None]:
    return [None if nd is None else str(nd) for nd in placements]
