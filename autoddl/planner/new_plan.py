"""A new plan, on one mesh or in pipeline stages, as asked for."""

from __future__ import annotations

from typing import Any, Literal

from ..cluster.spec import Cluster
from ..cost.recompute import Checkpointing
from ..graph.batch_norm import with_batch_norm
from ..graph.graph import Graph
from ..plans import Plan
from .planner import find_plan
from .stages.staged_planner import find_staged_plan

Stages = int | Literal["auto"]


def new_plan(
    graph: Graph,
    cluster: Cluster,
    stages: Stages | None = None,
    schedule: str = "1f1b",
    checkpointing: Checkpointing = "auto",
    gap: float | None = None,
    batch_norm: str = "batch",
    **options: Any,
) -> Plan:
    """The best plan found.

    stages:        None for one mesh, a number of pipeline stages, or "auto" for as many as pay
    schedule:      of the stages
    checkpointing: stages choose it themselves and take "auto" only
    gap:           of `find_plan`; the search for stages keeps to none
    batch_norm:    the rows that BatchNorm takes its statistics of, see `batch_norm`
    options:       of `find_plan` and `find_staged_plan`, which raise the same errors for them
    """
    graph = with_batch_norm(graph, batch_norm)
    if stages is None:
        return find_plan(graph, cluster, checkpointing=checkpointing, gap=gap, **options)
    if checkpointing != "auto":
        raise ValueError(
            f"checkpointing={checkpointing!r} cannot go with stages, which choose for themselves "
            "what is run again; leave one of them out"
        )
    if gap is not None:
        raise ValueError(
            f"gap={gap:g} cannot go with stages, whose search proves no gap; leave one of them out"
        )
    if stages != "auto" and not (isinstance(stages, int) and stages >= 1):
        raise ValueError(f"stages must be a number from 1 on, 'auto' or None, got {stages!r}")
    count = None if stages == "auto" else stages
    return find_staged_plan(graph, cluster, stages=count, schedule=schedule, **options)
