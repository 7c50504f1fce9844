"""Wrong inputs of every command, file and call end in an error that says what is wrong.

None is a traceback, takes more than five seconds of the processor a plan, or ends the process. In
Python, errors are raised by a `raise` of ours, not where something that was not looked at is used.
"""

import ast
import dataclasses
import functools
import json
import random
import signal
import traceback
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import autoddl
from autoddl.cluster.spec import MACHINE_FILE
from autoddl.tools import train
from autoddl.tools.box import Box
from autoddl.tools.cli import main
from tests.clusters import cluster
from tests.plans.example import MLP, PLAN, STAGED
from tests.tools import malformed

LIMIT_SECONDS = 5.0  # of the processor, for each plan that a right call makes
PLANS = {"--suggest": 5}  # of options that plan several times; 3.6 s quiet, for one of two blocks
# what runs jobs or looks at the machine takes no file and little else (wrong calls of `run` are in
# test_run.py, its script's words are not ours); `box` needs root
NOT_TRIED = ("box", "calibrate", "doctor", "machines", "models", "run", "schema")
COMMANDS = [(path, made) for path, made in malformed.leaves() if path[0] not in NOT_TRIED]


class Late(BaseException):
    """A call takes too long."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a good file of each kind; calls are timed, and `train` starts nothing."""
    monkeypatch.chdir(tmp_path)
    MLP.save("graph.json")
    PLAN.save("plan.json")
    STAGED.save("staged.json")
    MACHINE_FILE.save(cluster("laptop", 1, 2), "machine.json")

    def refuse(*_, **__):
        raise ValueError("no processes are started here")

    def late(*_):
        raise Late

    monkeypatch.setattr(train, "run_processes", refuse)
    before = signal.signal(signal.SIGPROF, late)
    yield tmp_path
    signal.signal(signal.SIGPROF, before)


def limited(call, plans=1):
    signal.setitimer(signal.ITIMER_PROF, plans * LIMIT_SECONDS)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def told(words) -> int:
    """The status of a command, which must be one that commands have."""
    plans = max(PLANS.get(word, 1) for word in words)
    result = limited(lambda: CliRunner().invoke(main, words), plans)
    error = result.exception
    assert error is None or isinstance(error, SystemExit), (words, error)
    assert "Traceback" not in result.output, (words, result.output)
    assert result.exit_code in (0, 1, 2), (words, result.output)
    assert result.exit_code == 0 or result.output.strip(), words
    return result.exit_code


def options(folder, seeds) -> Counter:
    good = {
        "model": "graph.json", "cluster_file": "laptop", "plan_file": "plan.json", "nodes": "1",
        "first": "plan.json", "second": "staged.json", "output": "out.json", "gpus_per_node": "2",
    }  # fmt: skip
    known = {name: folder / f"{name}.json" for name in ("graph", "plan", "machine")}
    bad, found = malformed.bad_files(folder, known), Counter()
    for seed in seeds:
        rng = random.Random(seed)
        path, command = COMMANDS[seed % len(COMMANDS)]
        found[told(malformed.words(path, command, good, bad, rng))] += 1
    return found


@pytest.mark.full
def test_options(folder):
    assert options(folder, range(40))[2] > 20


@pytest.mark.full
@pytest.mark.timeout(900)
def test_many_options(folder):
    assert options(folder, range(1000, 2000))[2] > 700


@functools.cache
def texts() -> dict[str, str]:
    hints = {"version": 1, "hints": {"fc*": "split(2)", "fc0": "replicate(2)"}}
    return {
        "machine": MACHINE_FILE.dumps(cluster("gcp_a100", 2, 2)),
        "graph": json.dumps(MLP.to_json()),
        "plan": PLAN.dumps(),
        "staged": STAGED.dumps(),
        "hints": json.dumps(hints),
    }


USES = {
    "machine": ["plan graph.json --cluster bad.json -o out.json"],
    "graph": ["plan bad.json --cluster laptop", "compare bad.json --cluster laptop"],
    "plan": [
        "explain bad.json", "diff bad.json plan.json", "memory bad.json",
        "explain bad.json --json --timeline t.json",
        "train gpt_small --cluster laptop --nodes 2 --gpus-per-node 2 --plan bad.json",
    ],
    "staged": ["explain bad.json", "memory bad.json", "diff bad.json staged.json"],
    "hints": ["plan graph.json --cluster laptop --nodes 2 --gpus-per-node 2 --hints bad.json"],
}  # fmt: skip


def files(folder, seeds) -> Counter:
    found, kinds = Counter(), list(USES)
    for seed in seeds:
        rng = random.Random(seed)
        kind = kinds[seed % len(kinds)]
        (folder / "bad.json").write_bytes(malformed.mutated(texts()[kind], rng))
        found[told(rng.choice(USES[kind]).split())] += 1
    return found


def test_files(folder):
    assert files(folder, range(25))[2] > 10


@pytest.mark.full
@pytest.mark.timeout(900)
def test_many_files(folder):
    assert files(folder, range(1000, 1500))[2] > 300


# ---- calls


def is_told(error: BaseException) -> bool:
    """Whether it was raised on purpose, by us, or as the call has other arguments."""
    if isinstance(error, OSError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    if Path(last.filename).parent == Path(__file__).parent:
        return isinstance(error, TypeError)
    if not isinstance(error, ValueError | TypeError) or not last.lineno:
        return False
    return any(first <= last.lineno <= end for first, end in raises(last.filename))


@functools.cache
def raises(file: str) -> list[tuple[int, int]]:
    """The lines of the `raise` statements of ours."""
    if "autoddl" not in Path(file).parts:
        return []
    tree = ast.parse(Path(file).read_text())
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Raise))
    return [(node.lineno, node.end_lineno or node.lineno) for node in found]


def check(name: str, call, args=(), /, **keywords) -> int:
    """Every argument is each of the wrong values in turn; how many calls that were."""
    count = 0
    for place in (*range(len(args)), *keywords):
        for value in malformed.anything():
            given, named = list(args), dict(keywords)
            if isinstance(place, int):
                given[place] = value
            else:
                named[place] = value
            count += 1
            try:
                limited(lambda given=given, named=named: call(*given, **named))
            except Exception as error:
                assert is_told(error), (name, place, value, repr(error))
    return count


@pytest.mark.full
def test_calls_for_plans(folder):
    where = autoddl.Cluster.load("laptop")
    two = where.with_shape(1, 2)
    check("plan", autoddl.plan, graph=MLP, cluster=where)
    check("Cluster.load", autoddl.Cluster.load, ("laptop",))
    check("with_shape", where.with_shape, nodes=1, gpus_per_node=2)
    check("with_shares", where.with_shape(2, 2).with_shares, ((1, 1),))
    check("Graph.load", autoddl.Graph.load, ("graph.json",))
    check("Plan.load", autoddl.Plan.load, ("plan.json",))
    check("Plan.loads", autoddl.Plan.loads, (PLAN.dumps(),))
    check("Plan.from_json", autoddl.Plan.from_json, (PLAN.to_json(),))
    check("Plan.save", PLAN.save, ("out.json",))
    check("Plan.check_model", PLAN.check_model, (PLAN.graph,))
    check("Plan.check_cluster", PLAN.check_cluster, (PLAN.cluster,))
    check("Plan.on", PLAN.on, (PLAN.cluster,))
    check("explain", autoddl.explain, (PLAN,))
    check("figures", autoddl.figures, (PLAN,))
    check("Box", Box, (2, 1, "1gbit", "name"))
    check("split", autoddl.split, (2,))
    check("replicate", autoddl.replicate, (2,))
    for option in dataclasses.fields(autoddl.PlanOptions):
        plan = functools.partial(autoddl.plan, MLP, two)
        check(f"plan({option.name}=)", plan, **{option.name: option.default})


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_calls_for_training(folder):
    flow = pytest.importorskip("oneflow", reason="needs OneFlow")
    x, y = flow.ones(8, 8), flow.ones(8, 2)
    model, loss = flow.nn.Sequential(flow.nn.Linear(8, 4), flow.nn.Linear(4, 2)), flow.nn.MSELoss()
    alone = autoddl.Cluster.load("laptop").with_shape(1, 1)
    needed = {
        "model": model, "cluster": alone, "example": (x, y), "loss": loss,
        "optimizer": functools.partial(flow.optim.SGD, lr=0.1),
    }  # fmt: skip
    more = {
        "plan": None, "stages": None, "clip_grad_norm": None, "ema_decay": None,
        "on_nonfinite": "raise", "debug": False,
    }  # fmt: skip

    def parallelize(**given):
        if given["optimizer"] is not int:  # which is called, and fails by itself
            autoddl.parallelize(**given)

    check("parallelize", parallelize, **needed, **more)
    check("trace", autoddl.trace, (x, y), model=model, loss=loss, name="model")
    check("batchwise", autoddl.batchwise, (model,))
    trainer = autoddl.parallelize(**needed)
    check("step", trainer.step, (x, y))
    check("eval_step", trainer.eval_step, (x,))
    check("evaluate", trainer.evaluate, ([(x, y)],), metrics=None)
    check("load_state_dict", trainer.load_state_dict, (trainer.state_dict(),))
    check("save", trainer.save, ("saved",), extra=None, keep=None, wait=True)
    check("load", trainer.load, ("saved",), missing_ok=True)
    check("after_backward", trainer.after_backward, (lambda named: None,))
    check("profile", trainer.profile, ([(x, y)],))
