"""The calls that users make: `trace`, `plan` and `parallelize`.

`trace` and `parallelize` need OneFlow and import the back end when they are called; all else works
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from .cluster.spec import Cluster
from .cost.comm import CommRule
from .cost.recompute import Checkpointing
from .graph.batch_norm import BatchNorm, with_batch_norm
from .graph.graph import Graph
from .planner.new_plan import Stages, new_plan
from .planner.planner import find_plan
from .planner.stages.staged_planner import find_staged_plan
from .planner.tables.group_table import Space
from .plans import Plan
from .plans.staged import StagedPlan, loads_plan
from .runtime.need import BackendMissing, need_oneflow

__all__ = ["BackendMissing", "parallelize", "plan", "plan_stages", "trace"]

if TYPE_CHECKING:
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


def plan(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    optimizer: str = "adam",
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    comm_rule: CommRule = "shared_nic",
    restarts: int = 32,
    budget_seconds: float | None = None,
    budget_evaluations: int | None = None,
    gap: float | None = None,
    split_channels: bool = False,
    zero: bool = True,
    baselines: bool = True,
    checkpointing: Checkpointing = "auto",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
) -> Plan:
    """The best plan for training `graph` on `cluster`; see `planner.find_plan` for the options.

    split_channels: search channel splits of convolutions even where the batch divides over all
                    devices (there AutoDDL section 4.5 finds data parallel convolutions the best)
    zero:           store parameters split (ZeRO) where it pays; False as in AutoDDL
    batch_norm:     the rows that BatchNorm takes its statistics of: those of the "batch", of each
                    "micro_batch", or of each device's "shard" of it (see `batch_norm`)
    """
    return find_plan(
        with_batch_norm(graph, batch_norm),
        cluster,
        seed=seed,
        optimizer=optimizer,
        micro_batches=micro_batches,
        memory_limit_bytes=memory_limit_bytes,
        search=search,
        comm_rule=comm_rule,
        restarts=restarts,
        budget_seconds=budget_seconds,
        budget_evaluations=budget_evaluations,
        gap=gap,
        space=Space(split_channels=split_channels, zero=zero),
        zero=zero,
        baselines=baselines,
        checkpointing=checkpointing,
        precision=precision,
    )


def plan_stages(
    graph: Graph,
    cluster: Cluster,
    *,
    stages: int | None = None,
    schedule: str = "1f1b",
    delay: int | None = None,
    chunks: int = 1,
    seed: int = 0,
    optimizer: str = "adam",
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    comm_rule: CommRule = "shared_nic",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
) -> Plan | StagedPlan:
    """The best plan with pipeline stages; see `planner.stages.staged_planner.find_staged_plan`.

    stages: None chooses, and gives a plan without stages if one stage is best
    delay:  weight gradients are taken so many backward passes late; None: with the inputs'
    chunks: parts of the model on each stage, for interleaved-1f1b
    """
    return find_staged_plan(
        with_batch_norm(graph, batch_norm),
        cluster,
        stages=stages,
        schedule=schedule,
        delay=delay,
        chunks=chunks,
        seed=seed,
        optimizer=optimizer,
        micro_batches=micro_batches,
        memory_limit_bytes=memory_limit_bytes,
        search=search,
        comm_rule=comm_rule,
        precision=precision,
    )


@overload
def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: StagedPlan,
    stages: None = None,
    schedule: str = "1f1b",
    seed: int = 0,
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    gap: float | None = None,
    checkpointing: Checkpointing = "auto",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
    debug: bool = False,
) -> Trainer: ...


@overload
def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: Plan | None = None,
    stages: None = None,
    schedule: str = "1f1b",
    seed: int = 0,
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    gap: float | None = None,
    checkpointing: Checkpointing = "auto",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
    debug: bool = False,
) -> Trainer: ...


@overload
def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: Plan | StagedPlan | None = None,
    stages: Stages | None = None,
    schedule: str = "1f1b",
    seed: int = 0,
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    gap: float | None = None,
    checkpointing: Checkpointing = "auto",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
    debug: bool = False,
) -> Trainer: ...


def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: Plan | StagedPlan | None = None,
    stages: Stages | None = None,
    schedule: str = "1f1b",
    seed: int = 0,
    micro_batches: int | None = None,
    memory_limit_bytes: float | None = None,
    search: str = "auto",
    gap: float | None = None,
    checkpointing: Checkpointing = "auto",
    precision: str = "float32",
    batch_norm: BatchNorm = "batch",
    debug: bool = False,
) -> Trainer:
    """Train `model` in parallel on `cluster`: trace, plan (or take `plan`) and set up this rank.

    Every rank of the job makes this call; on one device no launcher is needed.

    example:   the model's positional inputs of one global batch, then the target
    loss:      (output, target) -> scalar
    micro_batches: parts of the batch whose gradients are accumulated, to those of the whole batch;
               None takes as few as fit, and 1 where rows of the batch meet, in a contrastive loss
               for instance
    plan:      None for a new one; with stages, each rank trains its own stage's part of the model
    stages:    of the new plan, a pipeline of so many under `schedule`; "auto" for as many as pay
    optimizer: parameters -> oneflow optimizer, e.g. `lambda p: flow.optim.Adam(p, lr=1e-3)`
    seed:      of the search and of dropout
    search, gap, checkpointing, precision: as in `planner.find_plan`; float16 needs CUDA devices
    batch_norm: of a new plan: BatchNorm takes the statistics of the whole "batch", which is then
               not cut, of each "micro_batch", or of each device's "shard" of it
    debug:     after each operator, assert the planned placements and equal replicas

    Raises ValueError if the model cannot be traced, nothing fits, the plan is for another model or
    cluster, or the number of processes is not the cluster's; BackendMissing without OneFlow.
    """
    need_oneflow("autoddl.parallelize")
    from .runtime.jobs.guard import install_guard
    from .runtime.jobs.session import check_world_size, share_text
    from .runtime.loss_scale import check_stages
    from .runtime.oneflow.backend import OneFlow
    from .runtime.oneflow.trace.trace import trace_with_state
    from .runtime.oneflow.trainer import build_trainer

    if plan is not None and stages is not None:
        raise ValueError(
            "`plan` says by itself in how many stages the model is trained; leave `stages` out, or "
            "plan anew"
        )
    install_guard()
    in_stages = isinstance(plan, StagedPlan) or stages is not None
    backend = OneFlow()
    chosen = precision if plan is None else plan.precision
    if in_stages:
        check_stages(chosen)
    backend.check_precision(chosen)
    check_world_size(cluster, backend.size)
    traced = trace_with_state(model, *example, loss=loss)
    if plan is None:
        kind = backend.optimizer_kind(optimizer)

        def make() -> str:
            found = new_plan(
                traced.graph,
                cluster,
                stages,
                schedule,
                checkpointing,
                seed=seed,
                optimizer=kind,
                micro_batches=micro_batches,
                memory_limit_bytes=memory_limit_bytes,
                search=search,
                gap=gap,
                precision=precision,
                batch_norm=batch_norm,
            )
            return found.dumps()

        plan = loads_plan(share_text(make, backend))
    else:
        plan.check_model(traced.graph)
        plan.check_cluster(cluster)
    return build_trainer(traced, plan, optimizer, debug=debug)
