import json

import pytest

from autoddl.planner import find_plan
from autoddl.plans import Plan
from autoddl.summary import summary_json
from tests.clusters import cluster
from tests.graphs import mlp, residual, tied

PLAN = find_plan(residual(2, 512, 1024), cluster("piz_daint", 2, 2), seed=5)


def test_a_plan_file_gives_the_plan_again(tmp_path):
    file = tmp_path / "plan.json"
    PLAN.save(file)
    again = Plan.load(file)
    assert again.dumps() == PLAN.dumps()
    assert again.cost.iteration_s == PLAN.cost.iteration_s
    assert again.explain() == PLAN.explain()


def test_the_summary_has_the_promised_fields():
    summary = json.loads(json.dumps(summary_json(PLAN)))
    assert summary["cluster"]["nodes"] == 2 and summary["seed"] == 5
    assert summary["cost"]["iteration_s"] == pytest.approx(
        summary["cost"]["compute_s"] + summary["cost"]["communication_s"]
    )
    for link in ("per_nic", "per_device_intra"):
        parts = summary["link_bytes"][link]
        assert parts["total"] == parts["forward"] + parts["backward"] + parts["gradient_sync"]
    assert summary["memory_bytes"] > 0
    assert {"algorithm", "evaluations", "seconds"} <= summary["search"].keys()
    names = [layer["name"] for layer in summary["layers"]]
    assert names == ["block0.fc1", "block0.fc2", "block1.fc1", "block1.fc2"]
    for layer in summary["layers"]:
        assert layer["op"] == "matmul" and layer["topology"].startswith("(S0:(")
        assert "->" in layer["signature"]


def test_layers_share_out_the_whole_cost():
    layers = [PLAN.layer_cost(layer) for layer in PLAN.layers]
    assert sum(c.iteration_s for c in layers) == pytest.approx(PLAN.cost.iteration_s)
    assert sum(c.memory_bytes for c in layers) == pytest.approx(PLAN.cost.memory_bytes)


def test_explain_names_layers_alternatives_and_steps():
    text = PLAN.explain()
    assert "block*.fc*" in text or "block0.fc1" in text
    assert "next best" in text and "NIC" in text and "predicted" in text
    layer = PLAN.explain("block0.fc2")
    assert "block0.fc2" in layer and "NIC" in layer
    with pytest.raises(ValueError, match="block0.fc1"):
        PLAN.explain("nothing")


def damaged(**changes):
    data = PLAN.to_json()
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting"),
        ("[]", "no object"),
        (damaged(version=99), "version 99"),
        (damaged(ops=None), "ops"),
        (damaged(ops={}), "places no operator"),
        (damaged(edges=[["block0.fc2/matmul", 0, ["all_gather[0] S0->S1"], []]]), "not a step"),
        (damaged(graph={"version": 1}), "graph"),
        (damaged(search={"algorithm": "x", "luck": 1}), "plan the model again"),
    ],
)
def test_a_damaged_file_is_named_and_explained(tmp_path, text, words):
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as error:
        Plan.load(file)
    assert "bad.json" in str(error.value)


def test_a_path_that_leads_elsewhere_is_found():
    data = PLAN.to_json()
    edge = next(e for e in data["edges"] if e[2])
    edge[2] = []
    with pytest.raises(ValueError, match="inconsistent"):
        Plan.from_json(data)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="none.json"):
        Plan.load(tmp_path / "none.json")


def test_another_model_or_cluster_is_refused():
    PLAN.check_model(residual(2, 512, 1024))
    with pytest.raises(ValueError, match="another model"):
        PLAN.check_model(residual(3, 512, 1024))
    with pytest.raises(ValueError, match="another model"):
        PLAN.check_model(mlp(64, (8, 8)))
    PLAN.check_cluster(cluster("laptop", 2, 2))
    with pytest.raises(ValueError, match="with_shape"):
        PLAN.check_cluster(cluster("piz_daint", 4, 1))


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "plan.json"
    PLAN.save(file)
    before = file.read_text()
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        PLAN.save(file)
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]


def test_the_certificate_is_in_the_summary_and_in_words():
    graph, where = mlp(4096, (32, 32, 32)), cluster("piz_daint", 4, 1)
    proven = find_plan(graph, where)
    search, bounds = summary_json(proven)["search"], summary_json(proven)["bounds"]
    assert search["proven"] is True and search["gap"] == 0.0
    assert search["lower_bound_s"] == pytest.approx(proven.cost.iteration_s, rel=3e-6)
    assert bounds["matmul_bytes"] == max(
        bounds["memory_independent_bytes"], bounds["memory_dependent_bytes"]
    )
    assert bounds["matmul_bytes"] <= bounds["moved_bytes"]
    assert "optimal in this space (gap 0)" in proven.explain()
    guessed = find_plan(graph, where, search="random", restarts=1, baselines=False)
    search = summary_json(guessed)["search"]
    assert search["lower_bound_s"] <= proven.cost.iteration_s
    assert search["gap"] >= guessed.cost.iteration_s / proven.cost.iteration_s - 1 > 0
    assert search["proven"] is False
    assert "no plan in this space is more than" in guessed.explain()


def test_how_a_search_ended_is_kept():
    plan = find_plan(
        tied(64, 32), cluster("piz_daint", 4, 1), search="random", budget_evaluations=3
    )
    assert (plan.search.end, plan.search.evaluations) == ("budget", 3)
    assert "until its budget ended" in plan.explain()
    assert Plan.loads(plan.dumps()).search == plan.search
