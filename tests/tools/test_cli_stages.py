"""`autoddl plan --stages` and `autoddl explain` of such a plan."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoddl.tools.cli import main
from tests.graphs import mlp

LAPTOP = "laptop"


def autoddl(*words: str):
    return CliRunner().invoke(main, words)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("stages") / "mlp.json"
    mlp(16, (32, 64, 64, 64, 32)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def plan(graph) -> str:
    path = str(Path(graph).with_name("plan.json"))
    words = ("--stages", "2", "--schedule", "eager-1f1b", "--micro-batches", "4", "-o", path)
    result = autoddl("plan", graph, "--cluster", LAPTOP, *words)
    assert result.exit_code == 0, result.output
    assert "2 stages, eager-1f1b" in result.stdout
    return path


def test_json(graph):
    words = ("--stages", "2", "--micro-batches", "2", "--no-overlap", "--json")
    data = json.loads(autoddl("plan", graph, "--cluster", LAPTOP, *words).stdout)
    assert data["micro_batches"] == 2
    assert [s["first_layer"] for s in data["stages"]][0] == 0
    assert data["transfers"][0]["source"] == 0
    assert all(stage["memory_bytes"] > 0 and stage["plan"]["layers"] for stage in data["stages"])
    assert all(stage["plan"]["search"]["gap"] <= 1e-4 for stage in data["stages"])
    schemes = {scheme["name"] for scheme in data["schemes"] if scheme["fits"]}
    assert schemes >= {"this plan", "data parallel", "Megatron"}


def test_auto_gives_one_stage_where_that_is_best(graph):
    words = ("--stages", "auto", "--nodes", "1", "--gpus-per-node", "1", "--json")
    data = json.loads(autoddl("plan", graph, "--cluster", LAPTOP, *words).stdout)
    assert len(data["stages"]) == 1 and data["cost"]["iteration_s"] > 0


def test_explain(plan, tmp_path):
    text = autoddl("explain", plan).stdout
    assert "\nStages\n" in text and "0 -> 1" in text
    trace = tmp_path / "trace.json"
    assert autoddl("explain", plan, "--trace", str(trace)).exit_code == 0
    assert json.loads(trace.read_text())["traceEvents"]
    picture = tmp_path / "timeline.png"
    pytest.importorskip("matplotlib", reason="draws with matplotlib")
    assert autoddl("explain", plan, "--timeline", str(picture)).exit_code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_explain_gives_the_json_of_plan(graph, tmp_path):
    path = str(tmp_path / "plan.json")
    planned = autoddl("plan", graph, "--cluster", LAPTOP, "--stages", "2", "-o", path, "--json")
    explained = autoddl("explain", path, "--json")
    assert explained.exit_code == 0 and len(json.loads(explained.stdout)["stages"]) == 2
    expected = json.loads(planned.stdout)
    for stage in expected["stages"]:
        stage["plan"]["search"]["seconds"] = None  # which is not in the file
    assert json.loads(explained.stdout) == expected


def test_mistakes(graph, plan, tmp_path):
    def refusal(*words: str) -> str:
        result = autoddl(*words)
        assert result.exit_code == 2, result.output
        return result.stderr

    cluster = ("--cluster", LAPTOP)
    assert "a number or auto" in refusal("plan", graph, *cluster, "--stages", "many")
    assert "more than the model's 4 layers" in refusal("plan", graph, *cluster, "--stages", "5")
    words = ("--stages", "2", "--schedule", "chimera")
    assert "'chimera' is not one of 'gpipe'" in refusal("plan", graph, *cluster, *words)
    words = ("--stages", "2", "--delay", "1", "--checkpointing", "all")
    assert "use checkpointing='none'" in refusal("plan", graph, *cluster, *words)
    words = ("--stages", "2", "--schedule", "interleaved-1f1b")
    assert "--chunks" in refusal("plan", graph, *cluster, *words)
    assert "no layer 'fc9'" in refusal("explain", plan, "--layer", "fc9")
    words = ("--layer", "fc0", "--trace", str(tmp_path / "t.json"))
    assert "show the whole plan" in refusal("explain", plan, *words)
    assert "no such file" in refusal("explain", str(tmp_path / "none.json")).lower()
