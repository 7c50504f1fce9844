import json

import pytest

from autoddl import explain
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.summary import summary_json
from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.example import PLAN


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


def test_the_certificate_is_in_the_summary_and_in_words():
    graph, where = mlp(4096, (32, 32, 32)), cluster("piz_daint", 4, 1)
    proven = find_plan(graph, where)
    search, bounds = summary_json(proven)["search"], summary_json(proven)["bounds"]
    assert search["proven"] is True and search["gap"] == 0.0
    assert search["lower_bound_s"] == pytest.approx(figures(proven).cost.iteration_s, rel=3e-6)
    assert bounds["matmul_bytes"] == max(
        bounds["memory_independent_bytes"], bounds["memory_dependent_bytes"]
    )
    assert bounds["matmul_bytes"] <= bounds["moved_bytes"]
    assert "optimal in this space for its micro-batches (gap 0)" in explain(proven)
    guessed = find_plan(graph, where, PlanOptions(search="random", restarts=1, baselines=False))
    search = summary_json(guessed)["search"]
    assert search["lower_bound_s"] <= figures(proven).cost.iteration_s
    assert (
        search["gap"]
        >= figures(guessed).cost.iteration_s / figures(proven).cost.iteration_s - 1
        > 0
    )
    assert search["proven"] is False
    assert "no plan in this space with as many micro-batches is more than" in explain(guessed)
