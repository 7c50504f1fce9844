"""The planner: a graph and a cluster to a plan, on one mesh or in the stages of a pipeline.

A mesh is a pipeline of one stage with one micro-batch in flight. `find_plan` cuts the model into
stages (`stages.choice`; without stages there is one, with all layers on all devices) and plans each
on its own mesh (`mesh.plan_mesh`), with the micro-batches in flight that its place in the pipeline
asks for (`stages.in_stages`). Where hosts are not alike, it looks for the shares of each, too.

The known schemes are priced beside it, and the plan records them: on one mesh each on its best
topology, and in stages each in the same stages, with its best topology for every one of them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from ..cluster.spec import Cluster
from ..cost.model import CostModel
from ..cost.operators import alone_s, speeds
from ..graph.graph import Graph
from ..graph.hints import as_hints
from ..plans.figures import figures
from ..plans.format import before, format_seconds, more
from ..plans.plan import Plan
from ..plans.stage import PlannedBaseline
from ..search.budget import FIRST_PART, Deadline, Ended
from .asked import (
    Working,
    check_no_stages,
    cost_model,
    micro_batch_counts,
    prepared,
    with_hints_of,
    working,
)
from .baselines.pricing import Schemes
from .fit_in_memory import is_full
from .mesh import MeshPlan, plan_hinted, plan_mesh, with_schemes
from .options import DEFAULTS, INTERLEAVED, PlanOptions, paused_collector
from .shares import (
    TRIES,
    Shares,
    best_shares,
    better_shares,
    by_experts,
    divided_rows,
    starts,
    whole_shares,
)
from .stages.in_stages import plan_in_stages
from .tables.group_table import Space
from .tables.groups import MicroBatches

_log = logging.getLogger(__name__)
# Of the seconds of a plan: where computation alone takes as long as that on the hosts of one group,
# these are not planned for, as what they may gain is not worth a search. With half of it a small
# GPT on two kinds of hosts is planned in 0.7 of the time, and nothing is told; with twice, 1.06
# times. Nor where it does with the plan's communication, on a ring of fewer hosts: without that ViT
# on 2 + 6 hosts takes 1.2 times as long.
_ALONE = 0.75


@paused_collector()
def find_plan(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions = DEFAULTS,
    *,
    space: Space | None = None,
) -> Plan:
    """The best plan found for training `graph` (traced with its loss) on `cluster`.

    Ctrl-C ends the search; what was found until then is the plan.

    space: which strategies are searched on one mesh; a baseline restricts them. None: what the
           options say

    Raises ValueError if the batch cannot be cut as asked for, there are more stages than layers or
    devices, the machine file has no rate for the precision, or nothing fits the memory.
    """
    if not graph.loss:
        raise ValueError(
            "the graph was traced without a loss; trace(..., loss=loss_fn) plans training"
        )
    model = cost_model(graph, cluster, options)
    graph, options = prepared(graph, options), with_hints_of(graph, options)
    work = working(cluster, options)
    if options.stages in (None, 1):
        check_no_stages(options)
        if work is None:
            return _on_hosts(graph, model, options, space)
        return _hinted(options, lambda own: _on_hosts(graph, model, own, space, work))
    if cluster.groups and options.schedule == INTERLEAVED:
        raise ValueError(
            f"{cluster.name} has hosts of {len(cluster.groups)} kinds; an interleaved pipeline has "
            "equal stages on hosts that are all alike: choose another schedule"
        )
    assert space is None, "stages are searched among all strategies"
    if not options.hints:
        return _staged(graph, model, options)
    return _hinted(options, lambda own: _staged(graph, model, own))


def _hinted(options: PlanOptions, planned: Callable[[PlanOptions], Plan]) -> Plan:
    """The plan with the hints, which says what a step without them takes."""
    deadline = Deadline.after(options.budget_seconds)
    asked = replace(options, hints=(), budget_seconds=deadline.budget_s(FIRST_PART))
    with before("the plan with the hints"):
        free = planned(asked)
    if free.was_interrupted:
        deadline.end()
    plan = planned(replace(options, budget_seconds=deadline.budget_s(1.0)))
    plan = _interrupted(plan) if deadline.was_ended else plan
    seconds = min(figures(free).iteration_s, figures(plan).iteration_s)
    return replace(plan, hints=as_hints(options.hints), unhinted_s=seconds)


def _staged(graph: Graph, model: CostModel, options: PlanOptions) -> Plan:
    """The plan in as many stages as are asked for, or as pay."""
    deadline = Deadline.after(options.budget_seconds)
    if options.stages != "auto":
        plan = plan_in_stages(graph, model, options, deadline)
        return _interrupted(plan) if deadline.was_ended else plan
    found: list[Plan] = []
    failed: list[ValueError] = []
    try:
        one = replace(options, budget_seconds=deadline.budget_s(FIRST_PART))
        with before("pipeline stages"):
            found.append(_on_hosts(graph, model, one, None))
    except ValueError as error:
        failed.append(error)
    if found and (deadline.is_over or found[0].was_interrupted):
        return found[0]
    try:
        found.append(plan_in_stages(graph, model, options, deadline, gives_up=bool(found)))
    except ValueError as error:
        failed.append(error)
    except (KeyboardInterrupt, Ended) as ended:
        if not found:
            raise
        if isinstance(ended, KeyboardInterrupt):
            deadline.end()
    if not found:
        raise failed[0]
    best = min(found, key=lambda plan: figures(plan).iteration_s)
    return _interrupted(best) if deadline.was_ended else best


def _interrupted(plan: Plan) -> Plan:
    """The plan, marked as found before Ctrl-C ended the search."""
    return replace(plan, stages=tuple(stage.as_interrupted() for stage in plan.stages))


def _on_hosts(
    graph: Graph, model: CostModel, options: PlanOptions, space: Space | None,
    work: Working | None = None,
) -> Plan:  # fmt: skip
    """The plan on one mesh at the shares that are asked for, or that are best.

    work: the hosts that hints leave a share, if these are not all and no shares are given
    """
    cluster, given = model.cluster, options.given_shares
    micro = MicroBatches.of(graph, options.in_flight or 1)
    if given and graph.batch % sum(given):
        _tell_of_rows(graph.batch, given)
    if options.hints and work:
        of_modules = tuple(at for at in as_hints(options.hints) if at.host is None)
        return _at_best_shares(graph, micro, work, model, replace(options, hints=of_modules), space)
    if given is not None or cluster.shares or not cluster.groups:
        return _on_one_mesh(micro, _by(model, given or cluster.shares), options, space)[0]
    return _at_best_shares(graph, micro, Working(cluster), model, options, space)


def _at_best_shares(
    graph: Graph, micro: MicroBatches, work: Working, model: CostModel, options: PlanOptions,
    space: Space | None,
) -> Plan:  # fmt: skip
    """The plan on one mesh at the shares of hosts that are best.

    The known schemes are priced at these shares alone (at each with hints, which some may break),
    and the best of them at even ones.
    """
    failed: list[ValueError] = []
    made: dict[Shares, MeshPlan] = {}
    deadline = Deadline.after(options.budget_seconds)

    def at(shares: Shares, below_s: float) -> Plan | None:
        if deadline.was_ended:
            return None
        own = replace(options, budget_seconds=deadline.budget_s(1 / TRIES))
        tries = TRIES - 1 - len(made) - len(failed)
        try:
            after = more(tries, "try of other shares", "tries of other shares", most=True)
            with before(after, "known schemes" if options.baselines else ""):
                at_shares = _by(model, work.shares(shares))
                plan, made[shares] = _on_one_mesh(micro, at_shares, own, space, below_s, True)
        except ValueError as error:
            failed.append(error)
            return None
        except KeyboardInterrupt:
            if not made:
                raise
            deadline.end()
            return None
        if plan.was_interrupted:
            deadline.end()
        return plan

    rows = divided_rows(work.cluster, graph.batch)
    best, plans = best_shares(  # after Ctrl-C of the plans so far
        at,
        lambda plan: figures(plan).iteration_s,
        lambda plan, limit_bytes: better_shares(plan, rows, limit_bytes),
        starts(work.cluster, graph),
        rows,
        _also(work, graph, rows),
        lambda plan: model.limit_bytes if _is_short(plan) else math.inf,
    )
    if best is None:
        raise failed[0]
    plan, even = plans[best], plans.get(())
    schemes = made[best].schemes
    if schemes is not None and not deadline.is_over:
        plan = _beside_schemes(plan, schemes, _by(model, work.shares(())), options)
    elif even is not None and even is not plan:
        plan = _beside_even(plan, even.closest_baseline)
    plan = _interrupted(plan) if deadline.was_ended else plan
    if not work.has:
        _tell_of_groups_alone(micro, model, replace(options, baselines=False), plan)
    return plan


def _is_short(plan: Plan) -> bool:
    """Whether a plan on one mesh may be as it is for want of memory."""
    return plan.stage.micro_batches > 1 or is_full(plan)


def _also(work: Working, graph: Graph, rows: int) -> tuple[Shares, ...]:
    """Shares by which experts are divided whole; if hosts are left out, also by powers of two.

    Of these widths are multiples, rather than of the hosts that are left.
    """
    whole = by_experts(work.cluster, graph)
    if not work.has:
        return whole
    own = whole_shares(speeds(work.cluster, graph), rows & -rows, each=4)
    return (*whole, own) if len(set(own)) > 1 else whole


def _beside_schemes(plan: Plan, schemes: Schemes, even: CostModel, options: PlanOptions) -> Plan:
    """The best plan at some shares beside the known schemes there, and the best at even ones.

    If one of these is faster, that is the plan.
    """
    found = with_schemes(plan.stage, schemes, options)
    plan = replace(plan, stages=(found.stage,), baselines=tuple(r.record for r in found.rivals))
    if plan.was_interrupted or plan.stage.shares == even.cluster.shares:
        return plan
    try:
        nearest = schemes.on(even).nearest()
    except KeyboardInterrupt:
        return _interrupted(plan)
    if nearest is not None and nearest.seconds < figures(plan).iteration_s:
        at_even, _ = _on_one_mesh(schemes.pricer.micro, even, options)
        if figures(at_even).iteration_s < figures(plan).iteration_s:
            return at_even
    return _beside_even(plan, nearest and nearest.record)


def _beside_even(plan: Plan, rival: PlannedBaseline | None) -> Plan:
    """The plan beside the closest known scheme at even shares, too."""
    if rival is None:
        return plan
    named = replace(rival, name=f"{rival.name}, even shares")
    return replace(plan, baselines=(*plan.baselines, named))


def _tell_of_rows(rows: int, shares: Shares) -> None:
    """Warn that the rows of a batch cannot be divided by the shares that are asked for."""
    parts = sum(shares)
    below = rows - rows % parts
    near = [str(n) for n in (below, below + parts) if n]
    _log.warning(
        "a batch of %d rows cannot be divided %s among hosts, as it is not a multiple of %d; "
        "a batch of %s can",
        rows, ":".join(map(str, shares)), parts, " or ".join(near),
    )  # fmt: skip


def _tell_of_groups_alone(
    micro: MicroBatches, model: CostModel, options: PlanOptions, plan: Plan
) -> None:
    """Warn where the hosts of one group are faster without the others.

    A share of nothing, which no mesh has, is a plan on fewer hosts; which to start is the user's.
    """
    if options.budget_seconds is not None or plan.was_interrupted:
        return
    seconds, exposed_s = figures(plan).iteration_s, figures(plan).cost.exposed_s
    for number, group in enumerate(model.cluster.groups):
        alone = model.cluster.of_group(number)
        computing_s = alone_s(alone.device, alone, micro.whole) / alone.num_devices
        around_s = exposed_s * (1 - 1 / alone.nodes) / (1 - 1 / model.cluster.nodes)
        if computing_s >= _ALONE * seconds or computing_s + around_s >= seconds:
            continue
        try:
            on_alone = replace(model, cluster=alone)
            found = figures(_on_one_mesh(micro, on_alone, options, below_s=seconds)[0])
        except ValueError:  # nothing fits, or nothing is faster
            continue
        if found.iteration_s < seconds:
            _log.warning(
                "the hosts of %s would take %s a step without the others, all together take %s; "
                "plan for them with a machine file of their own",
                group.name, format_seconds(found.iteration_s), format_seconds(seconds),
            )  # fmt: skip


def _by(model: CostModel, shares: Shares) -> CostModel:
    return replace(model, cluster=model.cluster.with_shares(shares))


def _on_one_mesh(
    micro: MicroBatches,
    model: CostModel,
    options: PlanOptions,
    space: Space | None = None,
    below_s: float = math.inf,
    schemes_later: bool = False,
) -> tuple[Plan, MeshPlan]:
    """below_s, schemes_later: as `plan_mesh` has them, where there are no hints."""
    counts = micro_batch_counts(micro.whole, options.micro_batches, micro.in_flight)
    unhinted_s = None
    if options.hints:
        found, unhinted_s = plan_hinted(micro, counts, model, options, space)
    else:
        found = plan_mesh(
            micro, counts, model, options, space, below_s=below_s, schemes_later=schemes_later
        )
    plan = Plan.on_one_mesh(found.stage, tuple(rival.record for rival in found.rivals))
    return replace(plan, hints=as_hints(options.hints), unhinted_s=unhinted_s), found
