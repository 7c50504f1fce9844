"""The command line: what it prints where, its exit status, and its messages for mistakes."""

import atexit
import dataclasses
import gc
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoddl.plans import Plan
from autoddl.runtime.entry import SHIPPED
from autoddl.tools.cli import main
from tests.graphs import mlp

ROOT = Path(__file__).parents[2]
LAPTOP = "laptop"
COMMANDS = (
    "box", "calibrate", "compare", "diff", "doctor", "explain", "export", "machines", "memory",
    "models", "plan", "run", "schema", "trace", "train",
)  # fmt: skip


def autoddl(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def refusal(*words: str) -> str:
    """The message of a command that must fail as a mistake of the user: one, and no traceback."""
    result = autoddl(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("graph") / "gpt.json")
    result = autoddl("trace", "gpt_small", "-o", path)
    assert result.exit_code == 0, result.output
    assert "118,528 parameters, batch 16" in result.stdout
    return path


@pytest.fixture(scope="module")
def plan(graph) -> str:
    path = str(Path(graph).with_name("plan.json"))
    result = autoddl("plan", graph, "--cluster", LAPTOP, "-o", path)
    assert result.exit_code == 0, result.output
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps_with_examples(command):
    result = autoddl(command, "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    autoddl {command}" in result.stdout


def test_help_lists_the_commands():
    done = subprocess.run(
        [sys.executable, "-m", "autoddl", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert re.findall(r"^  ([a-z]+)  ", done.stdout, re.MULTILINE) == list(COMMANDS)


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("numpy", "scipy", "oneflow", "rich")
    code = f"import sys, autoddl.tools.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_what_is_left_at_the_end_of_a_command_is_not_collected(monkeypatch):
    """Of a plan within a second that took 0.3 of 4 s."""
    registered = []
    monkeypatch.setattr(atexit, "register", registered.append)
    assert autoddl("machines").exit_code == 0
    assert registered == [gc.freeze]


def test_the_table_names_every_kind_of_layer(graph):
    result = autoddl("plan", graph, "--cluster", LAPTOP)
    assert result.exit_code == 0
    words = ("embedding", "qkv", "logits", "comm.", "keeps")
    assert all(word in result.stdout for word in (*words, "split", "batch "))
    same = "--cluster", LAPTOP, "--no-baselines"
    labels = autoddl("plan", graph, *same, "--notation", "sbp").stdout
    assert all(word in labels for word in (*words, "topology", "signature", "S0:("))
    assert "on laptop 2x2\nbatch 16, adam\n" in result.stdout


def test_json_is_one_object_with_the_promised_fields(graph):
    result = autoddl("plan", graph, "--cluster", LAPTOP, "--seed", "3", "--json")
    found = json.loads(result.stdout)
    assert found["cluster"]["nodes"] == 2
    assert found["seed"] == 3
    cost = found["cost"]
    exposed_s = cost["communication_s"] - cost["hidden_s"]
    assert cost["iteration_s"] == pytest.approx(cost["compute_s"] + exposed_s)
    for link in ("per_nic", "per_device_intra"):
        parts = found["link_bytes"][link]
        assert {"forward", "backward", "gradient_sync"} <= set(parts)
    assert found["memory_bytes"] > 0
    assert {"name", "op", "split", "topology", "signature"} <= set(found["layers"][0])
    assert re.search(
        r"S0:\(\d+,\d+\), B:\(\d+,\d+\), S1:\(\d+,\d+\)", found["layers"][0]["topology"]
    )
    assert {"algorithm", "evaluations", "seconds", "end"} <= set(found["search"])
    assert {"lower_bound_s", "gap", "proven"} <= set(found["search"])
    assert "matmul_bytes" in found["bounds"]


def test_help_names_every_search():
    from autoddl.search.algorithms import ALGORITHMS

    words = " ".join(autoddl("plan", "--help").stdout.split())
    assert all(name in words for name in ALGORITHMS)


def test_a_module_and_its_saved_graph_give_the_same_plan(graph, plan, tmp_path):
    again = tmp_path / "again.json"
    words = ("--cluster", LAPTOP, "-o", str(again))
    assert autoddl("plan", "gpt_small", *words).exit_code == 0
    assert again.read_text() == Path(plan).read_text()


def test_options_reach_the_planner(graph, tmp_path):
    few_layers = str(tmp_path / "mlp.json")
    mlp(16, (32, 64, 64, 32)).save(few_layers)

    def figures(*words: str, model: str = few_layers) -> dict:
        same = "--cluster", LAPTOP, "--json", "--no-baselines", "--no-overlap"
        result = autoddl("plan", model, *same, *words)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    small = figures("--nodes", "1", "--gpus-per-node", "2", "--batch", "8")
    assert (small["cluster"]["nodes"], small["cluster"]["gpus_per_node"]) == (1, 2)
    assert small["batch"] == 8
    assert figures("--micro-batches", "4")["micro_batches"] == 4
    assert figures("--optimizer", "sgd")["memory_bytes"] < figures()["memory_bytes"]
    assert figures("--memory-limit-gb", "0.5")["memory_limit_bytes"] == 5e8
    assert figures("--memory-limit-gb", "inf")["memory_limit_bytes"] is None
    assert figures("--search", "random")["search"]["algorithm"] == "random"
    few = figures("--search", "metropolis_hastings", "--budget-evaluations", "50")["search"]
    assert few["end"] == "budget" and few["evaluations"] <= 50
    soon = figures("--search", "random", "--budget-seconds", "0.05")["search"]
    assert soon["end"] == "budget"
    tight = ("--memory-limit-gb", "0.004")
    exact, rough = (
        figures(*tight, "--gap", gap, model=graph)["search"]["gap"] for gap in ("0", "20%")
    )
    assert exact < rough <= 0.2
    four = "--gpus-per-node", "4", "--search", "random"
    plain = figures(*four, "--comm-rule", "plain", model=graph)
    shared = figures(*four, model=graph)
    assert plain["cost"]["communication_s"] != shared["cost"]["communication_s"]


def test_explain(plan):
    whole = autoddl("explain", plan).stdout
    assert "next best" in whole or "no other topology" in whole
    layer = json.loads(Path(plan).read_text())["stages"][0]["layers"][0]["name"]
    one = autoddl("explain", plan, "--layer", layer).stdout
    assert layer in one
    assert len(one) < len(whole)
    assert "has no layer 'nothing'" in refusal("explain", plan, "--layer", "nothing")


def test_explain_gives_the_json_of_plan(graph, tmp_path):
    path = str(tmp_path / "plan.json")
    planned = autoddl("plan", graph, "--cluster", LAPTOP, "-o", path, "--json")
    explained = autoddl("explain", path, "--json")
    assert explained.exit_code == 0 and json.loads(explained.stdout)["layers"]
    expected = json.loads(planned.stdout)
    expected["search"]["seconds"] = None  # which is not in the file
    assert json.loads(explained.stdout) == expected
    name = "blocks.0.attention.qkv"
    layer = json.loads(autoddl("explain", path, "--json", "--layer", name).stdout)["layers"]
    assert [own["name"] for own in layer] == [name]
    assert "--layer" in refusal("explain", path, "--html", "x.html", "--layer", name)


def test_mistakes_in_what_is_planned(graph, tmp_path):
    cluster = ("--cluster", LAPTOP)
    assert "no such file" in refusal("plan", graph, "--cluster", "nowhere.json")
    assert "no module 'nowhere'" in refusal("plan", "nowhere:model", *cluster)
    assert "write module:function" in refusal("plan", "models.gpt", *cluster)
    assert "did you mean gpt_small?" in refusal("plan", "gpt_smal", *cluster)
    assert "did you mean json:dump?" in refusal("plan", "json:dumpz", *cluster)
    assert "no machine of autoddl's" in refusal("plan", "gpt_small", "--cluster", "laptp")
    assert "x>=1" in refusal("plan", graph, *cluster, "--nodes", "0")
    assert "x>0" in refusal("plan", graph, *cluster, "--budget-seconds", "0")
    assert "such as 1% or 0.01" in refusal("plan", graph, *cluster, "--gap", "small")
    assert "less than 100%" in refusal("plan", graph, *cluster, "--gap", "100%")
    assert "proves no bound" in refusal(
        "plan", graph, *cluster, "--gap", "1%", "--search", "random"
    )
    assert "'guess'" in refusal("plan", graph, *cluster, "--search", "guess")
    assert "too much" in refusal(
        "plan", graph, *cluster, "--memory-limit-gb", "0.0001", "--no-baselines"
    )
    for words in ("-1", "0", "nan", "much"):
        told = refusal("plan", graph, *cluster, "--memory-limit-gb", words)
        assert "a number of gigabytes such as 16, or inf" in told
    assert "does not divide" in refusal("plan", graph, *cluster, "--micro-batches", "7")
    missing = str(tmp_path / "no" / "folder" / "plan.json")
    assert missing.rsplit("/", 1)[0] in refusal("plan", graph, *cluster, "-o", missing)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(Path(graph).read_text()[:1000])
    assert str(damaged) in refusal("plan", str(damaged), *cluster)
    assert "no such file" in refusal("plan", str(tmp_path / "none.json"), *cluster).lower()
    assert "no such file" in refusal("explain", str(tmp_path / "none.json")).lower()


def test_debug_shows_the_traceback(graph):
    result = autoddl("--debug", "plan", graph, "--cluster", "nowhere.json")
    assert isinstance(result.exception, ValueError)


def test_doctor_prints_json(monkeypatch):
    from autoddl.tools import doctor

    bad = doctor.Check("oneflow", "fail", "not installed", "pip install .")
    monkeypatch.setattr(doctor, "examine", lambda: [bad])
    result = autoddl("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {"ok": False, "checks": [vars(bad)], "notes": []}
    assert "pip install ." in autoddl("doctor").stdout


def without_oneflow(tmp_path: Path, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit statuses and stderr of commands in one Python whose `import oneflow` fails."""
    (tmp_path / "oneflow.py").write_text("raise ImportError('no OneFlow here')")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    text = (
        "import json; from click.testing import CliRunner; from autoddl.tools.cli import main\n"
        f"done = [CliRunner().invoke(main, words) for words in {commands!r}]\n"
        "print(json.dumps([(one.exit_code, one.stderr) for one in done]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_planning_a_saved_graph_needs_no_oneflow(graph, plan, tmp_path):
    again = tmp_path / "again.json"
    planning = ("plan", graph, "--cluster", LAPTOP, "-o", str(again))
    for status, said in without_oneflow(tmp_path, planning, ("explain", plan)):
        assert status == 0, said
    assert again.read_text() == Path(plan).read_text()


def test_what_needs_oneflow_says_so(tmp_path):
    commands = [
        (command, "gpt_small", *(("-o", "g.json") if command == "trace" else ("--cluster", LAPTOP)))
        for command in ("trace", "train", "plan")
    ]
    for status, said in without_oneflow(tmp_path, *commands):
        assert status == 2
        assert "needs OneFlow" in said
        assert "autoddl doctor" in said
        assert "Traceback" not in said


def test_memory_says_what_a_plan_keeps_and_when(plan, tmp_path):
    result = autoddl("memory", plan)
    assert result.exit_code == 0, result.output
    assert "parameters" in result.stdout and "activations" in result.stdout
    assert "at the fullest moment of a step: " in result.stdout
    assert "the limit is an estimate in laptop" in result.stdout
    own = dataclasses.replace(Plan.load(plan).stage, memory_limit_bytes=5e8)
    Plan.on_one_mesh(own).save(tmp_path / "own.json")
    assert "estimate" not in autoddl("memory", str(tmp_path / "own.json")).stdout
    found = json.loads(autoddl("memory", plan, "--json").stdout)
    assert found["total_bytes"] == sum(cause["bytes"] for cause in found["memory"])
    graph = json.loads(autoddl("memory", plan, "--runtime", "graph", "--json").stdout)
    assert found["total_bytes"] > graph["total_bytes"]
    assert "no such file" in refusal("memory", "nowhere.json").lower()


@pytest.mark.parametrize(("command", "name"), [("machines", "gcp_a100"), ("models", "gpt_small")])
def test_what_comes_with_autoddl_is_listed(command, name):
    listed = autoddl(command)
    assert listed.exit_code == 0 and f"\n{name} " in f"\n{listed.stdout}"


def test_models_are_listed_without_the_framework_that_they_need(monkeypatch):
    """Of each the first line that its function says of itself."""
    monkeypatch.setitem(sys.modules, "oneflow", None)
    lines = autoddl("models").stdout.splitlines()
    monkeypatch.undo()
    listed = dict(line.split(maxsplit=1) for line in lines[:-1])
    module = importlib.import_module(SHIPPED)
    told = {name: inspect.getdoc(getattr(module, name)) or "" for name in module.__all__}
    assert listed == {name: text.partition("\n")[0] for name, text in told.items()}
    assert "need it" in lines[-1]


def test_models_are_listed_as_wide_as_lines_are(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = autoddl("models").stdout.splitlines()
    assert max(map(len, lines)) <= 60 and "they" not in lines[-1]
