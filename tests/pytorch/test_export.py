"""Plans in the words of torch's own tools: run by torch alone, they train as one process does."""

import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import autoddl
from autoddl.planner.baselines import megatron
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.jobs.launch import run_processes
from autoddl.tools.cli import main
from tests.exactness.schemes import plan_of
from tests.pytorch.models import build
from tests.runtime.random_plans import cluster_of

HERE = Path(__file__).parent
# name -> (scheme of a plan of the MLP on 2x2, what its file says of modules, what of the batch)
PLANS = {
    "data": ("data_parallel", [], "DistributedDataParallel(model"),
    "stored split": ("zero:3", [], "reshard_after_forward=True"),
    "both": (
        "Megatron",
        [
            "'0': ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))",
            "'2': RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())",
        ],
        "reshard_after_forward=False",
    ),
}


def planned(scheme):
    model, loss, batch = build("mlp")
    graph = autoddl.trace(model, *batch(0), loss=loss)
    if scheme != "Megatron":
        return plan_of(scheme, graph, cluster_of(2, 2), "momentum", 1)
    options = PlanOptions(optimizer="momentum", micro_batches=1, baselines=False)
    return find_plan(graph, cluster_of(2, 2), options, space=megatron(graph, (0,)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    found = {}
    for name, (scheme, _, _) in PLANS.items():
        plan, file = folder / f"{name}.json", folder / f"{name}.py"
        planned(scheme).save(plan)
        done = CliRunner().invoke(main, ["export", str(plan), "-o", str(file)])
        assert done.exit_code == 0, done.output
        found[name] = file
    return found


def test_the_files_say_what_the_plans_do(files):
    for name, (_, modules, batch) in PLANS.items():
        text = files[name].read_text()
        assert all(line in text for line in [*modules, batch]), text


def test_torch_alone_trains_as_one_process(files):
    # in processes of its own: it makes torch's default group, and ends it
    told = io.StringIO()
    command = [str(HERE / "styled.py"), "mlp", *map(str, files.values())]
    status = run_processes(command, 4, {"PYTHONPATH": str(HERE.parents[1])}, output=told)
    out = told.getvalue()
    assert status == 0, out
    worst = [float(found) for found in re.findall(r"WORST (\S+)", out)]
    assert len(worst) == len(PLANS) and max(worst) < 1e-5, out


@pytest.fixture(scope="module")
def gpt():
    model, loss, batch = build("gpt")
    return autoddl.trace(model, *batch(0), loss=loss)


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("stages:2", "several stages"),
        ("zero-again:1", "recomputes"),
        ("SUMMA", "torch's own tools"),
    ],
)
def test_what_torch_has_no_word_for_is_refused(scheme, why, gpt, tmp_path):
    plan_of(scheme, gpt, cluster_of(2, 2), "sgd", 1).save(tmp_path / "plan.json")
    done = CliRunner().invoke(main, ["export", str(tmp_path / "plan.json"), "-o", "none.py"])
    assert done.exit_code != 0 and why in done.output, done.output
