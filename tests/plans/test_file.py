import json
import math

import pytest

from autoddl import explain
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from tests.clusters import cluster
from tests.graphs import tied
from tests.plans.example import BOTH, PLAN, STAGED, in_stages


@pytest.mark.parametrize("plan", BOTH.values(), ids=BOTH)
def test_a_plan_file_gives_the_plan_again(tmp_path, plan: Plan):
    file = tmp_path / "plan.json"
    plan.save(file)
    again = Plan.load(file)
    assert again == plan and again.dumps() == plan.dumps()
    assert figures(again).iteration_s == figures(plan).iteration_s
    assert explain(again) == explain(plan)


def test_the_same_search_gives_the_same_bytes():
    assert in_stages().dumps() == STAGED.dumps()


def damaged(**changes):
    """The file's text with fields of the plan or of its stage changed; None removes one."""
    data = PLAN.to_json()
    for key, value in changes.items():
        home = data if key in data else data["stages"][0]
        if value is None:
            del home[key]
        else:
            home[key] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[]", "must be an object"),
        (damaged(version=99), "is 99; this autoddl reads version 4; plan the"),
        (damaged(version=1), "plan the model again"),
        (damaged(ops=None), "ops"),
        (damaged(ops={}), "places no operator"),
        (damaged(edges=[["block0.fc2/matmul", 0, ["all_gather[0] S0->S1"], []]]), "not a step"),
        (damaged(graph={"version": 1}), "'graph.batch' is missing"),
        (damaged(search={"algorithm": "x", "luck": 1}), "unknown field 'stages.0..search.luck'"),
    ],
)
def test_a_damaged_file_is_named_and_explained(tmp_path, text, words):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        Plan.load(file)
    assert "bad.json" in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="none.json"):
        Plan.load(tmp_path / "none.json")


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    PLAN.save(file)
    before = file.read_text()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        PLAN.save(file)
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


def test_how_a_search_ended_is_kept():
    options = PlanOptions(search="random", budget_evaluations=3, baselines=False)
    plan = find_plan(tied(64, 32), cluster("piz_daint", 4, 1), options)
    assert (plan.stage.search.end, plan.stage.search.evaluations) == ("budget", 3)
    assert "until its budget ended" in explain(plan)
    assert Plan.loads(plan.dumps()).stage.search == plan.stage.search


def test_a_plan_without_a_memory_limit_is_kept_in_plain_json():
    plan = find_plan(
        tied(64, 32), cluster("piz_daint", 4, 1), PlanOptions(memory_limit_bytes=math.inf)
    )

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = plan.dumps()
    assert json.loads(text, parse_constant=refuse)["stages"][0]["memory_limit_bytes"] is None
    assert Plan.loads(text).memory_limit_bytes == math.inf
    assert "of unlimited memory a device" in explain(plan)
