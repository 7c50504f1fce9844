"""The calls that users make: `trace`, `plan` and `parallelize`.

`trace` and `parallelize` need the model's framework, OneFlow or PyTorch, and import the back
end for it when they are called; all else works without one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from ._files import expect, expect_callable
from .cluster.spec import Cluster
from .graph.graph import Graph
from .planner.options import PlanKeywords, PlanOptions, Stages, TrainKeywords
from .planner.planner import find_plan
from .plans import Plan
from .runtime.framework import BackendMissing
from .runtime.jobs.guard import inside

__all__ = ["BackendMissing", "parallelize", "plan", "trace"]

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .runtime.backend import Backend
    from .runtime.framework import Framework
    from .runtime.trainer import Trainer

_FIRST_S, _EVERY_S = 1.5, 15.0  # of silence while a plan is made, and between two signs of life
_A_CLUSTER = "`cluster` is a Cluster, such as Cluster.load('laptop')"


def trace(
    model: Any, *example: Any, loss: Callable[..., Any] | None = None, name: str | None = None
) -> Graph:
    """The graph of a single-device `oneflow.nn.Module` or `torch.nn.Module`.

    example: the model's positional inputs, followed by the target if `loss` is given; or one dict,
             of which the model gets by name what its `forward` takes, and `loss` gets all
    loss:    (output, target) -> scalar; planning a training run needs it

    Raises ValueError if the model cannot be traced, BackendMissing without its framework.
    """
    from .runtime.framework import framework_of

    expect(name, (str, type(None)), "`name` is the graph's, or None")
    own = framework_of(model, "autoddl.trace")
    return own.trace_with_state(model, *example, loss=loss, name=name).graph


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
    expect(graph, Graph, "`graph` is a Graph, which autoddl.trace gives and Graph.load reads")
    expect(cluster, Cluster, _A_CLUSTER)
    if options is not None:
        expect(options, PlanOptions, "`options` are PlanOptions; else give them by name")
    return find_plan(graph, cluster, PlanOptions.of(options, keywords))


@inside("parallelize")
def parallelize(
    model: Any,
    cluster: Cluster,
    *,
    example: Sequence[Any] | Mapping[str, Any],
    loss: Callable[..., Any],
    optimizer: Callable[[list[Any]], Any],
    plan: Plan | None = None,
    stages: Stages | None = None,
    clip_grad_norm: float | None = None,
    ema_decay: float | None = None,
    on_nonfinite: Literal["raise", "skip", "ignore"] = "raise",
    debug: bool = False,
    **options: Unpack[TrainKeywords],
) -> Trainer:
    """Train `model` in parallel on `cluster`: trace, plan (or take `plan`) and set up this rank.

    Every rank of the job makes this call; on one device no launcher is needed.

    example:   the model's positional inputs of one global batch, then the target; each a tensor or
               nested tuples, lists and dicts of tensors. Or one dict: the model gets by name what
               its `forward` takes of it, and the loss gets all of it
    loss:      (output, target) -> scalar
    optimizer: parameters -> an optimizer of it, e.g. `lambda p: flow.optim.Adam(p, lr=1e-3)`;
               they are this rank's, and `p.named()` gives them with names for parameter groups
    plan:      None for a new one; with stages, each rank trains its own stage's part of the model
    clip_grad_norm: the largest norm of the whole model's gradient; larger ones are scaled down
               before the optimizer steps. `trainer.grad_norm` is what it was
    ema_decay: such as 0.999, to keep an average of the parameters beside them, updated after each
               step and placed as they are: `with trainer.averaged():`, `trainer.ema_state_dict()`.
               It takes as much memory as they do, which a new plan counts (`ema=True` of `plan`)
    on_nonfinite: what happens when the loss or a gradient is infinite or no number. "raise": the
               next call raises FloatingPointError; "skip": such a step changes no parameter
    options:   of the new plan, the fields of `PlanOptions`; the seed is also dropout's
    debug:     after each operator, assert the planned placements and equal replicas; name the first
               operator that makes numbers that are not finite

    Raises TypeError for an unknown option, ValueError if the model cannot be traced, nothing fits,
    the plan is for another model or cluster, or the number of processes is not the cluster's;
    BackendMissing without the model's framework.
    """
    from .runtime.calling import as_arguments
    from .runtime.framework import framework_of
    from .runtime.update.update import checked_update

    _check_types(cluster, optimizer, plan, debug)
    chosen = PlanOptions.of(None, {**options, "stages": stages})
    _check_given(plan, chosen)
    own = framework_of(model, "autoddl.parallelize")
    backend = _backend_for(own, cluster, chosen.precision if plan is None else plan.precision)
    update = checked_update(clip_grad_norm, ema_decay, on_nonfinite)
    with _signs(model, plan is None, backend):
        traced = own.trace_with_state(model, *as_arguments(example), loss=loss)
        _check_alike(traced.graph, cluster, chosen, plan, backend)
        if plan is None:
            chosen = dataclasses.replace(chosen, ema=ema_decay is not None, back_end=own.NAME)
            plan = _plan_together(traced.graph, cluster, chosen, optimizer, backend)
    plan.check_model(traced.graph)
    plan.check_cluster(cluster)
    return own.build_trainer(traced, plan, optimizer, debug=debug, **update)


@contextlib.contextmanager
def _signs(model: object, plans: bool, backend: Backend) -> Iterator[None]:
    """While the block lasts the logger `autoddl` hears of it; a job says nothing else meanwhile."""
    done, started = threading.Event(), time.monotonic()
    what = f"tracing{' and planning' if plans else ''} {type(model).__name__}"

    def tell() -> None:
        wait_s = _FIRST_S
        while not done.wait(wait_s):
            wait_s = _EVERY_S
            spent_s = time.monotonic() - started
            logging.getLogger("autoddl").warning("%s: %.0f s", what, spent_s)

    if backend.rank == 0:
        threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _backend_for(own: Framework, cluster: Cluster, precision: str) -> Backend:
    """This rank's. ValueError unless it computes so, and the job has as many as the cluster."""
    from .runtime.backend import check_computes
    from .runtime.jobs.agreement import check_world_size
    from .runtime.jobs.guard import install_guard

    install_guard()
    backend = own.new_backend()
    check_computes(precision, backend.facts)
    check_world_size(cluster, backend.size)
    return backend


def _check_types(cluster: object, optimizer: object, plan: object, debug: object) -> None:
    """TypeError unless they are what `parallelize` takes."""
    expect(cluster, Cluster, _A_CLUSTER)
    expect_callable(optimizer, "`optimizer` is a function from parameters to an optimizer of them")
    expect(plan, (Plan, type(None)), "`plan` is a Plan, which autoddl.plan gives, or None")
    expect(debug, bool, "`debug` is True or False")


def _check_given(plan: Plan | None, options: PlanOptions) -> None:
    """ValueError if options of a new plan stand beside a plan."""
    if plan is not None and options.changed:
        raise ValueError(
            f"`plan` has its own {' and '.join(options.changed)}; leave "
            f"{'it' if len(options.changed) == 1 else 'them'} out, or plan anew"
        )


def _check_alike(
    graph: Graph, cluster: Cluster, options: PlanOptions, plan: Plan | None, backend: Backend
) -> None:
    """ValueError unless all ranks ask for the same."""
    from .runtime.jobs.agreement import check_alike, lines_of

    operators = {
        op.name: (op.kind, *map(str, graph.spec(op).outputs), op.attrs) for op in graph.ops
    }
    asked = options.keywords()
    asked["search"] = options.search if isinstance(options.search, str) else "a given one"
    check_alike(
        {
            "model": lines_of(operators),
            "cluster": lines_of(cluster.to_json()),
            "option": lines_of(asked if plan is None else {"plan": "a given one"}),
        },
        backend,
    )


def _plan_together(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions,
    optimizer: Callable[[list[Any]], Any],
    backend: Backend,
) -> Plan:
    """A new plan, made by rank 0 for all ranks."""
    from .runtime.jobs.agreement import optimizer_kind, share_text

    options = dataclasses.replace(options, optimizer=optimizer_kind(optimizer, backend))
    return Plan.loads(share_text(lambda: find_plan(graph, cluster, options).dumps(), backend))
