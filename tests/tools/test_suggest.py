"""Plans for other links, batches, memory and devices, each planned anew."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.tools.cli import main
from autoddl.tools.suggest import own_options, planned_anew
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.plans.example import STAGED

WHERE = cluster("gcp_a100", 2, 2)
MODEL = residual(1, 512, 256)


@pytest.fixture(scope="module")
def plan():
    return find_plan(MODEL, WHERE, PlanOptions(baselines=False))


def test_each_change_has_the_plan_that_planning_for_it_gives(plan):
    found = {change.what: change.plan for change in planned_anew(plan) if change.plan}
    alone = PlanOptions(baselines=False)
    memory = replace(alone, memory_limit_bytes=2 * plan.memory_limit_bytes)
    expected = {
        "twice the batch": find_plan(MODEL.with_batch(1024), WHERE, alone),
        "twice the memory": find_plan(MODEL, WHERE, memory),
        "half of the hosts": find_plan(MODEL, WHERE.with_shape(1, 2), alone),
    }
    for what, other in expected.items():
        assert figures(found[what]).iteration_s <= figures(other).iteration_s
        assert found[what].batch == other.batch
        assert found[what].cluster.num_devices == other.cluster.num_devices
    assert figures(found["half of the hosts"]).cost.inter_s.total == 0
    for link in ("between hosts", "inside a host"):
        faster = found[f"links {link} twice as fast"]
        assert figures(faster).iteration_s <= figures(plan.on(faster.cluster)).iteration_s


def test_what_cannot_be_planned_says_why():
    graph = residual(1, 64, 512)
    alone = PlanOptions(baselines=False)
    limit = 0.9 * figures(find_plan(graph, WHERE, alone)).needed_bytes[0]
    tight = find_plan(graph, WHERE, replace(alone, memory_limit_bytes=limit))
    (refused,) = [change for change in planned_anew(tight) if change.plan is None]
    assert refused.what == "half of the hosts"
    assert "no plan fits the memory limit" in refused.why_not


def test_the_plan_s_own_choices_are_kept():
    assert own_options(STAGED) == PlanOptions(
        stages=2,
        memory_limit_bytes=STAGED.memory_limit_bytes,
        baselines=False,
        back_end="oneflow",  # that of the model, which the plan names
    )
    options = PlanOptions(
        precision="float16", optimizer="sgd", seed=3, baselines=False, back_end="torch"
    )
    half = find_plan(mlp(16, (32, 32)), WHERE, options)
    assert replace(own_options(half), memory_limit_bytes=None) == options
    changed = [change.plan for change in planned_anew(half) if change.plan]
    assert {(p.precision, p.optimizer, p.seed) for p in changed} == {("float16", "sgd", 3)}
    assert all(figures(p).needed_bytes[0] < 2.1 * figures(half).needed_bytes[0] for p in changed)


def test_explain_suggests(tmp_path):
    file = str(tmp_path / "plan.json")
    find_plan(mlp(8, (16, 16)), cluster("laptop", 2, 2)).save(file)
    done = CliRunner().invoke(main, ["explain", file, "--suggest", "--json"])
    rows = {row["change"]: row for row in json.loads(done.stdout)["changes"]}
    fewer = rows["half of the hosts"]
    assert fewer["how"] == "a new plan" and fewer["repeated"] == pytest.approx(0.5)
    assert fewer["speed"] == pytest.approx(1)
    html = tmp_path / "plan.html"
    shown = CliRunner().invoke(main, ["explain", file, "--suggest", "--html", str(html)])
    assert shown.exit_code == 0 and all(f">{change}<" in html.read_text() for change in rows)
    drawn = ["explain", file, "--suggest", "--timeline", str(tmp_path / "timeline.png")]
    none = CliRunner().invoke(main, drawn)
    assert none.exit_code == 2 and "leave --suggest out" in none.output
    both = CliRunner().invoke(main, ["explain", file, "--suggest", "--layer", "fc0"])
    assert both.exit_code == 2 and "leave --layer or --suggest out" in both.output


@pytest.mark.full
def test_the_hint_that_costs_most_comes_first():
    hints = {"fc0": "split(2)", "fc1": "split(4)", "fc2": "replicate(1)"}
    plan = find_plan(mlp(512, (256, 256, 256, 256)), WHERE, PlanOptions(hints=hints))
    found = [change for change in planned_anew(plan) if change.what.startswith("without")]
    assert {change.what for change in found} == {
        "without all hints",
        *(f"without {hint} for '{path}' (hints)" for path, hint in hints.items()),
    }
    seconds = [figures(change.plan).iteration_s for change in found if change.plan]
    assert (
        len(seconds) == 4
        and seconds == sorted(seconds)
        and seconds[-1] <= 1.0001 * (figures(plan).iteration_s)
    )
    (free,) = [c.plan for c in found if c.plan and c.what == "without all hints"]
    assert figures(free).iteration_s == plan.unhinted_s and seconds[0] == plan.unhinted_s
    assert any(change.plan.hints == plan.hints for change in planned_anew(plan) if change.plan)
