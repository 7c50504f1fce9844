import dataclasses

import pytest

from autoddl import explain
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import attention
from tests.plans.example import BOTH, PLAN, STAGED


def test_explain_names_layers_alternatives_and_steps():
    text = explain(PLAN)
    assert "block*.fc*" in text or "block0.fc1" in text
    assert "next best" in text and "NIC" in text and "predicted" in text


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_any_layer_is_explained_by_itself(plan: Plan):
    name = plan.layers[-1].name
    layer = explain(plan, name)
    assert layer.startswith(name) and "NIC" in layer
    with pytest.raises(ValueError, match=plan.layers[0].name):
        explain(plan, "nothing")


def test_a_pipeline_is_explained_before_its_stages():
    text = explain(STAGED)
    assert "2 stages, 1f1b" in text and "bubble" in text
    assert "stage 0: layers 0-" in text and "with 2 micro-batches in flight" in text
    assert "stage 0 -> 1:" in text and "at least" in text


def test_stages_with_one_plan_are_explained_once():
    plan = find_plan(
        attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1), PlanOptions(stages=4, micro_batches=4)
    )
    assert figures(plan).same_as[:2] == (0, 1) and set(figures(plan).same_as[2:]) & {
        0,
        1,
        2,
    } == {1}
    assert explain(plan).count("\nthe plan of stage 1") == figures(plan).same_as[2:].count(1)
    assert [dataclasses.astuple(p) for p in figures(plan).prices] == [
        pytest.approx(dataclasses.astuple(stage_figures(stage).price)) for stage in plan.stages
    ]
