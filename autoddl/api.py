"""The calls that users make: `trace`, `plan` and `parallelize`.

`trace` and `parallelize` need OneFlow and import the back end when they are called; all else works
without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from .cluster.spec import Cluster
from .graph.graph import Graph
from .planner.options import PlanKeywords, PlanOptions, Stages, TrainKeywords
from .planner.planner import find_plan
from .plans import Plan
from .runtime.need import BackendMissing, need_oneflow

__all__ = ["BackendMissing", "parallelize", "plan", "trace"]

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .runtime.trainer import Trainer


def trace(
    model: Any, *example: Any, loss: Callable[..., Any] | None = None, name: str | None = None
) -> Graph:
    """The graph of a single-device `oneflow.nn.Module`.

    example: the model's positional inputs, followed by the target if `loss` is given
    loss:    (output, target) -> scalar; planning a training run needs it

    Raises ValueError if the model cannot be traced, BackendMissing without OneFlow.
    """
    need_oneflow("autoddl.trace")
    from .runtime.oneflow.trace.trace import trace as trace_oneflow

    return trace_oneflow(model, *example, loss=loss, name=name)


@overload
def plan(
    graph: Graph,
    cluster: Cluster,
    *,
    stages: Stages | None = None,
    **options: Unpack[PlanKeywords],
) -> Plan: ...


@overload
def plan(graph: Graph, cluster: Cluster, options: PlanOptions) -> Plan: ...


def plan(
    graph: Graph, cluster: Cluster, options: PlanOptions | None = None, **keywords: Any
) -> Plan:
    """The best plan found for training `graph` on `cluster`.

    The keyword arguments are the fields of `PlanOptions`, which may also be given as one value:
    `plan(graph, cluster, micro_batches=4, stages="auto")`. With stages="auto" it has as
    many stages as pay.

    Raises TypeError for an unknown option, ValueError if an option has no such value, the batch
    cannot be cut so, or nothing fits the memory.
    """
    return find_plan(graph, cluster, PlanOptions.of(options, keywords))


def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: Plan | None = None,
    stages: Stages | None = None,
    debug: bool = False,
    **options: Unpack[TrainKeywords],
) -> Trainer:
    """Train `model` in parallel on `cluster`: trace, plan (or take `plan`) and set up this rank.

    Every rank of the job makes this call; on one device no launcher is needed.

    example:   the model's positional inputs of one global batch, then the target
    loss:      (output, target) -> scalar
    optimizer: parameters -> oneflow optimizer, e.g. `lambda p: flow.optim.Adam(p, lr=1e-3)`
    plan:      None for a new one; with stages, each rank trains its own stage's part of the model
    options:   of the new plan, the fields of `PlanOptions`, such as stages="auto"; the seed is also
               dropout's, and float16 needs CUDA devices
    debug:     after each operator, assert the planned placements and equal replicas

    Raises TypeError for an unknown option, ValueError if the model cannot be traced, nothing fits,
    the plan is for another model or cluster, or the number of processes is not the cluster's;
    BackendMissing without OneFlow.
    """
    need_oneflow("autoddl.parallelize")
    from .runtime.backend import check_computes
    from .runtime.jobs.guard import install_guard
    from .runtime.jobs.session import check_world_size, optimizer_kind, share_text
    from .runtime.loss_scale import check_stages
    from .runtime.oneflow.backend import OneFlow
    from .runtime.oneflow.trace.trace import trace_with_state
    from .runtime.oneflow.trainer import build_trainer

    chosen = PlanOptions.of(None, {**options, "stages": stages})
    if plan is not None and chosen.changed:
        raise ValueError(
            f"`plan` has its own {' and '.join(chosen.changed)}; leave "
            f"{'it' if len(chosen.changed) == 1 else 'them'} out, or plan anew"
        )
    install_guard()
    backend = OneFlow()
    precision = chosen.precision if plan is None else plan.precision
    if stages is not None if plan is None else plan.num_stages > 1:
        check_stages(precision)
    check_computes(precision, backend.facts)
    check_world_size(cluster, backend.size)
    traced = trace_with_state(model, *example, loss=loss)
    if plan is None:
        chosen = dataclasses.replace(chosen, optimizer=optimizer_kind(optimizer, backend))
        text = share_text(lambda: find_plan(traced.graph, cluster, chosen).dumps(), backend)
        plan = Plan.loads(text)
    else:
        plan.check_model(traced.graph)
        plan.check_cluster(cluster)
    return build_trainer(traced, plan, optimizer, debug=debug)
