import dataclasses

import pytest

import autoddl
from tests.clusters import cluster
from tests.graphs import attention
from tests.plans.example import BOTH, PLAN, STAGED


def test_explain_names_layers_alternatives_and_steps():
    text = PLAN.explain()
    assert "block*.fc*" in text or "block0.fc1" in text
    assert "next best" in text and "NIC" in text and "predicted" in text


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_any_layer_is_explained_by_itself(plan):
    name = plan.layers[-1].name
    layer = plan.explain(name)
    assert layer.startswith(name) and "NIC" in layer
    with pytest.raises(ValueError, match=plan.layers[0].name):
        plan.explain("nothing")


def test_a_pipeline_is_explained_before_its_stages():
    text = STAGED.explain()
    assert "2 stages, 1f1b" in text and "bubble" in text
    assert "stage 0: layers 0-" in text and "with 2 micro-batches in flight" in text
    assert "stage 0 -> 1:" in text and "at least" in text


def test_stages_with_one_plan_are_explained_once():
    plan = autoddl.plan(
        attention(8, 8, 6, 16, 2), cluster("gcp_a100", 4, 1), stages=4, micro_batches=4
    )
    assert plan.same_as[:2] == (0, 1) and set(plan.same_as[2:]) & {0, 1, 2} == {1}
    assert plan.explain().count("\nthe plan of stage 1") == plan.same_as[2:].count(1)
    assert [dataclasses.astuple(p) for p in plan.prices] == [
        pytest.approx(dataclasses.astuple(stage.price)) for stage in plan.stages
    ]
