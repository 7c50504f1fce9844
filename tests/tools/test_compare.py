"""`compare` and `diff`: the figures are those of the plans, and the differences add up."""

import json
import math
import re
import sys

import pytest
from click.testing import CliRunner

from autoddl.planner.baselines import FAMILIES, data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.diff import cost_differences, differences
from autoddl.plans.figures import figures
from autoddl.tools.cli import main
from autoddl.tools.compare import OURS, compare
from autoddl.tools.report.compare import comparison_report
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.planner.test_shares import unlike

GRAPH = residual(3, 128, 256)
WHERE = cluster("piz_daint", 4, 2)


def run(*words: str) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    GRAPH.save(folder / "graph.json")
    find_plan(GRAPH, WHERE).save(folder / "ours.json")
    find_plan(GRAPH, WHERE, space=data_parallel(GRAPH)).save(folder / "data.json")
    return folder


def test_without_matplotlib_a_picture_is_refused_before_the_work(tmp_path, monkeypatch):
    """The comparison was made, and then lost."""
    GRAPH.save(tmp_path / "graph.json")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("autoddl.tools.compare.compare", None)
    words = ["compare", str(tmp_path / "graph.json"), "--cluster", "laptop", "--plot", "bars.png"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "pip install matplotlib" in result.output


def test_every_scheme_has_its_figures():
    found = compare(GRAPH, WHERE)
    assert [s.name for s in found.schemes] == [OURS, *(f.name for f in FAMILIES)]
    rows = {row["name"]: row for row in comparison_report(found).to_json()["schemes"]}
    for scheme in found.schemes:
        told = rows[scheme.name]
        assert told["fits"] and scheme.plan is not None
        parts = told["forward_s"], told["backward_s"], told["gradient_sync_s"]
        assert sum(parts) == pytest.approx(told["communication_s"], rel=1e-9)
        links = told["between_nodes_s"], told["inside_a_node_s"]
        assert sum(links) == pytest.approx(told["communication_s"], rel=1e-9)
        exposed_s = told["communication_s"] - told["hidden_s"]
        assert told["compute_s"] + exposed_s == pytest.approx(told["iteration_s"])
        assert found.ours.seconds <= scheme.seconds * (1 + 1e-9)
    closest = found.closest
    assert closest is not None
    assert closest.seconds == min(s.seconds for s in found.schemes[1:])
    saved = found.reductions(closest)["iteration_s"]
    assert found.ours.seconds == pytest.approx(closest.seconds * (1 - saved))


def test_hosts_that_are_not_alike_have_schemes_at_even_and_at_proportional_shares():
    where = unlike(1, 1, factor=3.0)
    found = compare(GRAPH, where)
    names = [scheme.name for scheme in found.schemes[1:]]
    plain = [family.name for family in FAMILIES]
    splits = "Whale's Algorithm 1", "Metis' split", "Poplar's split"
    by_speed = (f"{name}, shares 3:1" for name in plain)
    assert names == [*plain, *by_speed, *splits, "HAP's rules"]
    by_name = {scheme.name: scheme for scheme in found.schemes}
    plan = by_name["data parallel, shares 3:1"].plan
    assert plan is not None and plan.stage.shares == (3, 1)
    assert all(found.ours.seconds <= s.seconds * (1 + 1e-6) for s in found.schemes[1:])
    given = compare(GRAPH, where, PlanOptions(shares="2:1"))
    assert [scheme.name for scheme in given.schemes[1:]] == plain


def test_mixed_precision_is_for_every_scheme():
    where = cluster("gcp_a100", 2, 2)
    single, mixed = compare(GRAPH, where), compare(GRAPH, where, PlanOptions(precision="float16"))
    for before, after in zip(single.schemes, mixed.schemes, strict=True):
        assert after.plan is not None and after.plan.precision == "float16"
        assert after.seconds < before.seconds
    with pytest.raises(ValueError, match="plans in float32"):
        compare(GRAPH, where, PlanOptions(precision="float16"), rival="it did not end")


def test_a_scheme_that_cannot_run_is_told_of_without_times():
    found = compare(mlp(4, (64, 128, 64)), cluster("laptop", 4, 2))
    data = next(s for s in found.schemes if s.name == "data parallel")
    assert data.plan is None and math.isinf(data.seconds)
    told = next(r for r in comparison_report(found).to_json()["schemes"] if r["name"] == data.name)
    assert not told["fits"] and told["why_not"] and "iteration_s" not in told


def test_compare_prints_and_draws(files, tmp_path):
    bars = tmp_path / "bars.png"
    words = ["compare", str(files / "graph.json"), "--cluster", "piz_daint",
             "--nodes", "4", "--gpus-per-node", "2"]  # fmt: skip
    text = run(*words)
    assert "Megatron+ZeRO" in text and "the closest is" in text
    assert (
        "tensor" in text
        and "S0:(" not in text
        and "tensor" not in (paper := run(*words, "--notation", "sbp"))
    )
    assert "(S0:(4,2))" in paper and "topology: S0 rows, B columns" in paper
    told = json.loads(run(*words, "--json", "--plot", str(bars)))
    assert told["schemes"][0]["name"] == OURS
    assert told["schemes"][0]["iteration_s"] == figures(find_plan(GRAPH, WHERE)).cost.iteration_s
    assert bars.read_bytes().startswith(b"\x89PNG")


def test_differences_add_up_to_those_of_the_plans():
    ours, data = find_plan(GRAPH, WHERE), find_plan(GRAPH, WHERE, space=data_parallel(GRAPH))
    found = differences(data, ours)
    hidden_s = figures(ours).cost.hidden_s - figures(data).cost.hidden_s
    whole = cost_differences(figures(data).cost, figures(ours).cost)
    whole["seconds"] += hidden_s  # of no layer
    for key, value in whole.items():
        parts = sum(cost_differences(*d.costs)[key] for d in found)
        assert parts == pytest.approx(value, rel=1e-9, abs=1e-15), key
    assert any("split" in d.what for d in found)
    assert list(found) == sorted(found, key=lambda d: -abs(d.seconds))


def test_a_plan_does_not_differ_from_itself(files):
    assert "the plans are alike" in run("diff", *[str(files / "ours.json")] * 2)


def test_diff_prints_what_changed(files):
    a, b = str(files / "data.json"), str(files / "ours.json")
    text = run("diff", a, b)
    assert re.search(r"block\d?\*?\.fc", text) and re.search("b less a +-", text)
    told = json.loads(run("diff", a, b, "--json"))
    plans = told["plans"]
    more = plans["b"]["seconds"] - plans["a"]["seconds"]
    assert plans["difference"]["seconds"] == pytest.approx(more)
    assert sum(layer["seconds"] for layer in told["layers"]) == pytest.approx(more)


def test_plans_of_different_models_are_not_compared(files, tmp_path):
    find_plan(mlp(128, (256, 256)), WHERE).save(tmp_path / "other.json")
    words = ["diff", str(files / "ours.json"), str(tmp_path / "other.json")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2 and "only plans of one model" in result.output
