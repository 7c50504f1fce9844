"""Turns of two micro-batches in flight: a step of them is Akers' path, whole and checked."""

import dataclasses

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.schedule.buckets import best_buckets
from autoddl.plans.schedule.duplex import TurnsMaker, best_turns, interleaved, pieces_of
from autoddl.plans.schedule.orders import check_turns
from autoddl.plans.stage import StagePlan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import attention, residual

PLANS = {
    "two ways": find_plan(
        residual(3, 4096, 256),
        cluster("piz_daint", 2, 2),
        PlanOptions(overlap=False, micro_batches=2),
    ),
    "attention": find_plan(
        attention(2, 64, 32, 64, 4),
        cluster("laptop", 2, 2),
        PlanOptions(overlap=False, micro_batches=4),
    ),
    "run again": find_plan(
        residual(4, 256, 512),
        cluster("gcp_a100", 2, 4),
        PlanOptions(overlap=False, micro_batches=2, checkpointing="all"),
    ),
    "split storage": find_plan(
        residual(4, 4096, 512),
        cluster("gcp_a100", 2, 2),
        PlanOptions(overlap=False, micro_batches=2, memory_limit_bytes=90e6),
    ),
}


def in_turns(plan: Plan, bucketed: bool = True) -> Plan:
    """The plan with two micro-batches in flight."""
    maker = stage_figures(plan.stage).maker
    turns = best_turns(maker)
    buckets = best_buckets(TurnsMaker.of(maker, turns)) if bucketed else ()
    stage = dataclasses.replace(plan.stage, turns=turns, buckets=buckets, in_flight=2)
    found = dataclasses.replace(plan, stages=(stage,))
    found.verify()
    return found


def path_s(stage: StagePlan) -> float:
    """Of Akers' path through every single task."""
    pieces = [piece for some in pieces_of(stage_figures(stage).maker) for piece in some]
    strand = [(piece.queues, piece.seconds) for piece in pieces]
    return interleaved(strand, strand).seconds


@pytest.mark.parametrize("name", PLANS)
def test_a_step_in_turns_takes_what_the_path_takes_and_does_all_that_a_serial_one_does(name: str):
    serial = PLANS[name].stage
    stage = in_turns(PLANS[name], bucketed=False).stage
    two = dataclasses.replace(stage, micro_batches=2)
    step = stage_figures(two).tasks
    alone = stage_figures(dataclasses.replace(serial, micro_batches=2)).tasks
    does, needed = (
        sorted((t.cause, t.operator, t.seconds, t.micro_batch, t.members) for t in each.tasks)
        for each in (step, alone)
    )
    assert does == needed
    once_s = sum(s for own in stage_figures(two).maker.operators for s in own.first)
    once_s += sum(t.seconds for t in step.tasks if t.cause == "exchange" and not t.needs)
    assert path_s(stage) - 1e-12 <= step.end_s - once_s <= path_s(stage) * 1.05


@pytest.mark.parametrize("name", PLANS)
def test_the_whole_step_counts_what_the_simulator_hides(name: str):
    plan = in_turns(PLANS[name])
    known = stage_figures(plan.stage)
    every = known.maker.step(plan.stage.buckets, plan.micro_batches)
    assert known.cost.iteration_s == pytest.approx(every.end_s, rel=1e-9)
    assert figures(plan).timeline.iteration_s == pytest.approx(every.end_s, rel=1e-9)
    eight = dataclasses.replace(plan.stage, micro_batches=8)
    many = stage_figures(eight)
    assert many.cost.iteration_s == pytest.approx(many.whole.end_s, rel=1e-6)
    assert known.cost.hidden_s > 0
    assert Plan.loads(plan.dumps()) == plan


@pytest.mark.parametrize("name", PLANS)
def test_a_bucket_leaves_once_the_last_micro_batch_has_made_its_gradients(name: str):
    plan = in_turns(PLANS[name])
    step = stage_figures(plan.stage).maker.step(plan.stage.buckets, plan.micro_batches)
    last = {t.operator: n for n, t in enumerate(step.tasks) if t.cause == "backward"}
    once = [
        (number, step.exchanges[member].op)
        for number, task in enumerate(step.tasks)
        for member in task.members
        if not step.exchanges[member].is_often
    ]
    assert len(once) == sum(not exchange.is_often for exchange in step.exchanges)
    assert all(last.get(operator, -1) < number for number, operator in once)


def test_the_second_strand_is_never_ahead_and_turns_that_are_wrong_are_refused():
    stage = in_turns(PLANS["attention"]).stage
    count, last = len(stage_figures(stage).maker.operators), stage.turns[-1][1]
    assert last == 4 * count
    check_turns(stage.turns, count, 4)
    for turns, micro_batches, wrong in (
        (stage.turns, 3, "do not divide"),
        (stage.turns[:-1], 4, "leave 2"),
        (((0, last),), 4, "two or more"),
        (((1, 1), *stage.turns), 4, "at most"),
        (((0, 2), (0, 2), *stage.turns), 4, "must rise"),
    ):
        with pytest.raises(ValueError, match=wrong):
            check_turns(turns, count, micro_batches)
