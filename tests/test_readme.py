"""What the README shows is run: the call, the command lines, the operator rule with its proof."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click

from autoddl.runtime.jobs.launch import run_processes
from autoddl.tools.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
CALL, LOOP, RULE, PROOF, KERNEL = (text for language, text in FENCED if language == "python")
BLOCKS = [text for language, text in FENCED if not language]

PRELUDE = """
import oneflow as flow
from autoddl.runtime.oneflow.models.gpt import gpt_small
flow.manual_seed(0)
model, (x, y), loss_fn = gpt_small()
batches = [(flow.randint(0, 256, (16, 32)), flow.randint(0, 256, (16, 32))) for _ in range(2)]
"""
AFTERWARDS = """
assert trainer.plan.cluster.num_devices == 4
assert abs(float(loss) - 5.55) < 0.2, float(loss)
trainer.eval_step(x), trainer.state_dict()
"""
STEPPING = """
import os
import autoddl
cluster = autoddl.Cluster.load("laptop").with_shape(1, 1)
file = {file!r}
"""
RUNNING = """
import autoddl
model = flow.nn.Linear(8, 6)
forward = model.forward
model.forward = lambda x: flow.cumprod(forward(x) + 2, 1)
x, y = flow.randn(4, 8), flow.randn(4, 6)
graph = autoddl.trace(model, x, y, loss=flow.nn.MSELoss())
assert "cumprod" in [op.kind for op in graph.ops]
cluster = autoddl.Cluster.load("laptop").with_shape(1, 1)
trainer = autoddl.parallelize(
    model, cluster, example=(x, y), loss=flow.nn.MSELoss(),
    optimizer=lambda p: flow.optim.SGD(p, lr=0.0),
)
expected = float(flow.nn.MSELoss()(model(x), y))
assert abs(float(trainer.step(x, y)) - expected) < 1e-5 * expected
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_call(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    call = CALL.replace('"plan.json"', repr(str(tmp_path / "plan.json")))
    script.write_text(PRELUDE + call + AFTERWARDS)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_processes([str(script)], 4, timeout=200) == 0
    assert (tmp_path / "plan.json").exists()


def test_the_loop_goes_on_where_it_stopped(tmp_path):
    lines = PRELUDE + STEPPING.format(file=str(tmp_path / "state"))
    first, second = (run(lines + f"steps = {steps}\n" + LOOP) for steps in (2, 3))
    assert [line.split()[0] for line in first.splitlines()] == ["1", "2"]
    assert [line.split()[0] for line in second.splitlines()] == ["3"]


def test_the_rule_is_proven_and_prints_what_is_shown():
    shown = next(block for block in BLOCKS if block.startswith("holds:"))
    assert run(RULE + PROOF) == shown


def test_the_operator_runs_by_its_rule_and_kernel():
    run(RULE + KERNEL + RUNNING)


def test_the_command_lines_parse():
    lines = [line for b in BLOCKS if b.startswith("autoddl ") for line in b.splitlines()]
    assert len(lines) >= len(main.commands)
    for line in lines:
        _, name, *words = shlex.split(line)
        command = main.commands[name]
        while isinstance(command, click.Group):
            name, *words = words
            command = command.commands[name]
        command.make_context(name, words)


def test_files_that_are_named_exist():
    for path in re.findall(r"calibration/machines/\w+\.json", README):
        assert (ROOT / path).is_file(), path
