"""A plan with stages as versioned JSON, with the whole plan of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ...cluster.spec import Cluster
from ...cluster.submesh import SubMesh
from ...graph.cut import CutGraph
from ...graph.graph import Graph
from .. import Plan
from ..links import PlannedStage
from .checks import verify
from .figures import StagedFigures

STAGED_PLAN_VERSION = 1
STAGED = "staged"
AnyStaged = TypeVar("AnyStaged", bound=StagedFigures)


def to_json(plan: StagedFigures) -> dict[str, Any]:
    """What the file holds; `from_json` inverts it."""
    return {
        "version": STAGED_PLAN_VERSION,
        "kind": STAGED,
        "micro_batches": plan.micro_batches,
        "schedule": plan.schedule_name,
        "delay": plan.delay,
        "chunks": plan.chunks,
        "batch_norm": plan.batch_norm,
        "cluster": plan.cluster.to_json(),
        "layers": [list(layer) for layer in plan.cut.layers],
        "stages": [
            {
                "first": s.first,
                "last": s.last,
                "place": [s.place.first_node, s.place.nodes, s.place.first_gpu, s.place.gpus],
                "plan": s.plan.to_json(),
            }
            for s in plan.stages
        ],
        "graph": plan.cut.graph.to_json(),
    }


def from_json(kind: type[AnyStaged], data: Mapping[str, Any]) -> AnyStaged:
    """A verified plan. Raises ValueError on another version, and on a file that is not whole."""
    if data.get("kind") != STAGED or data.get("version") != STAGED_PLAN_VERSION:
        raise ValueError(
            f"not a plan with stages of version {STAGED_PLAN_VERSION}; plan the model again"
        )
    try:
        plan = kind(
            CutGraph(Graph.from_json(data["graph"]), tuple(map(tuple, data["layers"]))),
            Cluster.from_json(data["cluster"]),
            data["micro_batches"],
            data["schedule"],
            data["delay"],
            tuple(
                PlannedStage(s["first"], s["last"], SubMesh(*s["place"]), Plan.from_json(s["plan"]))
                for s in data["stages"]
            ),
            data.get("chunks", 1),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"not a whole plan file ({type(error).__name__}: {error}); plan the model again"
        ) from error
    verify(plan)
    return plan
