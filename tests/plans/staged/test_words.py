import dataclasses

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.stages.staged_planner import find_staged_plan
from autoddl.plans.stage_account import plan_price
from autoddl.plans.staged import StagedPlan
from tests.clusters import cluster
from tests.graphs import attention
from tests.plans.staged.example import STAGED


def test_words():
    text = STAGED.explain()
    assert "2 stages, 1f1b" in text and "bubble" in text
    assert "stage 0: layers 0-" in text and "with 2 micro-batches in flight" in text
    assert "stage 0 -> 1:" in text and "at least" in text


def test_stages_with_one_plan_are_explained_once():
    plan = find_staged_plan(
        attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1), PlanOptions(stages=4, micro_batches=4)
    )
    assert isinstance(plan, StagedPlan)
    assert plan.same_as[:2] == (0, 1) and set(plan.same_as[2:]) & {0, 1, 2} == {1}
    assert plan.explain().count("\nthe plan of stage 1") == plan.same_as[2:].count(1)
    assert [dataclasses.astuple(p) for p in plan.prices] == [
        pytest.approx(dataclasses.astuple(plan_price(stage.plan))) for stage in plan.stages
    ]
