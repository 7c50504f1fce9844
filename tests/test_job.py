"""`autoddl train` on real processes, and what it refuses before it starts any."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAPTOP = str(ROOT / "calibration" / "machines" / "laptop.json")
MODEL = "models.gpt:gpt_small"


def run(*words: str, **added: str) -> subprocess.CompletedProcess[str]:
    """added: to the environment"""
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    clean |= added
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=240
    )


def train(*words: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "autoddl", "train", MODEL, "--cluster", LAPTOP, *words)


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"^step +\d+  loss (\S+)", output, re.MULTILINE)]


def test_four_processes_train_like_one():
    alone = train("--nodes", "1", "--gpus-per-node", "1", "--steps", "3")
    assert alone.returncode == 0, alone.stderr
    together = train("--steps", "3")
    assert together.returncode == 0, together.stdout + together.stderr
    assert len(losses(alone.stdout)) == 3
    assert losses(together.stdout) == pytest.approx(losses(alone.stdout), rel=1e-4)


def test_a_pipeline_is_planned_and_trained_like_one_process():
    alone = train("--nodes", "1", "--gpus-per-node", "1", "--steps", "2")
    staged = train("--stages", "2", "--schedule", "eager-1f1b", "--steps", "2")
    assert staged.returncode == 0, staged.stdout + staged.stderr
    assert len(losses(alone.stdout)) == 2
    assert losses(staged.stdout) == pytest.approx(losses(alone.stdout), rel=1e-4)


def test_a_plan_has_its_own_stages():
    refused = train("--plan", "plan.json", "--stages", "2")
    assert refused.returncode == 2 and "leave it or --plan out" in refused.stderr


def test_a_launcher_may_start_the_ranks():
    words = ("-m", "autoddl", "train", MODEL, "--cluster", LAPTOP, "--nodes", "1", "--steps", "2")
    code = (
        "import sys; from autoddl.backend.oneflow.launch import run_processes; "
        "sys.exit(run_processes(sys.argv[2:], int(sys.argv[1])))"
    )
    good = run("-c", code, "2", *words)
    assert good.returncode == 0, good.stdout + good.stderr
    assert len(losses(re.sub(r"^\[0\] ", "", good.stdout, flags=re.MULTILINE))) == 2
    # One rank for a cluster of two devices.
    bad = run("-c", code, "1", *words)
    assert bad.returncode == 2
    assert "1 x 2 = 2 devices, but this job has 1 process" in bad.stdout


def test_what_the_device_cannot_compute_is_refused_before_any_process_starts(tmp_path):
    refused = train("--precision", "float16")
    assert refused.returncode == 2 and "no kernels on the CPU" in refused.stderr
    plan = str(tmp_path / "plan.json")
    a100 = str(ROOT / "calibration" / "machines" / "gcp_a100.json")
    shape = ("--nodes", "1", "--gpus-per-node", "2", "--precision", "float16")
    made = run("-m", "autoddl", "plan", MODEL, "--cluster", a100, *shape, "-o", plan)
    assert made.returncode == 0, made.stderr
    refused = train("--nodes", "1", "--gpus-per-node", "2", "--plan", plan)
    assert refused.returncode == 2 and "no kernels on the CPU" in refused.stderr


def test_a_plan_for_something_else_is_refused_before_any_process_starts(tmp_path):
    plan = str(tmp_path / "plan.json")
    made = run("-m", "autoddl", "plan", MODEL, "--cluster", LAPTOP, "-o", plan)
    assert made.returncode == 0, made.stderr
    other_cluster = train("--nodes", "1", "--plan", plan)
    assert other_cluster.returncode == 2
    assert "the plan is for 2 x 2 devices" in other_cluster.stderr
    other_model = run(
        "-m", "autoddl", "train", "models.dlrm:dlrm_small", "--cluster", LAPTOP, "--plan", plan
    )
    assert other_model.returncode == 2
    assert "the plan is for another model" in other_model.stderr
    data = json.loads(Path(plan).read_text())
    Path(plan).write_text(json.dumps({**data, "version": 99}))
    other_version = train("--plan", plan)
    assert other_version.returncode == 2
    assert "plan version 99" in other_version.stderr
    for refused in (other_cluster, other_model, other_version):
        assert "Traceback" not in refused.stderr
        assert refused.stdout == ""


@pytest.mark.full
def test_a_plan_with_stages_trains_like_one_device(tmp_path):
    """Two stages on two processes; tied weights (GPT's logits) are on both."""
    plan = str(tmp_path / "staged.json")
    shape = ("--nodes", "2", "--gpus-per-node", "1")
    made = run(
        "-m", "autoddl", "plan", MODEL, "--cluster", LAPTOP, *shape,
        "--stages", "2", "--micro-batches", "4", "-o", plan,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    together = train(*shape, "--steps", "2", "--plan", plan)
    assert together.returncode == 0, together.stderr
    alone = train("--nodes", "1", "--gpus-per-node", "1", "--steps", "2")
    assert len(losses(together.stdout)) == 2
    assert losses(together.stdout) == pytest.approx(losses(alone.stdout), rel=1e-5)
    other = train("--plan", plan)
    assert other.returncode == 2 and "the plan is for 2 x 1 devices" in other.stderr


def test_an_operator_without_a_rule_is_told_once(tmp_path: Path):
    (tmp_path / "unpooled.py").write_text(
        "from oneflow import int64, nn, randn, zeros\n"
        "class Unpool(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return nn.MaxUnpool2d(2)(*nn.MaxPool2d(2, return_indices=True)(x))\n"
        "def unpooled():\n"
        "    model = nn.Sequential(nn.Conv2d(1, 1, 2), Unpool(), nn.Flatten(), nn.Linear(4, 4))\n"
        "    return model, (randn(8, 1, 3, 3), zeros(8, dtype=int64)), nn.CrossEntropyLoss()\n"
    )
    words = ("-m", "autoddl", "train", "unpooled:unpooled", "--cluster", LAPTOP, "--steps", "1")
    done = run(*words, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "max_pool_2d" in line]
    assert len(told) == 1 and told[0].startswith("Warning: 1 runs as one replicated operator")
