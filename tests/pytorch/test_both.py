"""One plan file, one start: OneFlow and torch train alike.

Both are needed. AUTODDL_ONEFLOW is a Python that has OneFlow, where this one has not.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import autoddl
from tests.exactness.schemes import plan_of
from tests.pytorch.both import MODELS, batch
from tests.ranks import ROOT
from tests.runtime.random_plans import cluster_of

WORKER = Path(__file__).parent / "train_both.py"
ONEFLOW = os.environ.get("AUTODDL_ONEFLOW") or (
    sys.executable if importlib.util.find_spec("oneflow") else None
)
LAUNCH = (
    "import sys; from autoddl.runtime.jobs.launch import run_processes; "
    "sys.exit(run_processes(sys.argv[1:], 4, prefix=False))"
)


def losses(python: str, framework: str, name: str, folder: Path) -> list[float]:
    done = subprocess.run(
        [python, "-c", LAUNCH, str(WORKER), framework, name, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, cwd=ROOT,
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.skipif(ONEFLOW is None, reason="needs OneFlow beside torch")
@pytest.mark.parametrize(("name", "scheme"), [("mlp", "random:1"), ("gpt", "random:2")])
def test_a_plan_file_is_for_both(tmp_path, name, scheme):
    model, loss = MODELS[name](torch)
    np.savez(tmp_path / "values.npz", **{k: x.numpy() for k, x in model.state_dict().items()})
    graph = autoddl.trace(model, *map(torch.tensor, batch(name, 0)), loss=loss)
    plan_of(scheme, graph, cluster_of(2, 2), "momentum", 1).save(tmp_path / "plan.json")
    found = losses(sys.executable, "torch", name, tmp_path)
    assert ONEFLOW is not None
    assert found == pytest.approx(losses(ONEFLOW, "oneflow", name, tmp_path), rel=1e-5)
    assert len(set(found)) == len(found) == 10


@pytest.mark.full
@pytest.mark.skipif(ONEFLOW is None, reason="needs OneFlow beside torch")
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("first", ["oneflow", "torch"])
def test_one_goes_on_from_the_others_checkpoint(tmp_path, kind, first):
    """With what the optimizer keeps, whatever a framework calls it."""
    assert ONEFLOW is not None
    pythons = {"oneflow": ONEFLOW, "torch": sys.executable}
    second = next(name for name in pythons if name != first)

    def train(framework: str, call: str) -> list[float]:
        words = [framework, "gpt", kind, call, str(tmp_path)]
        done = subprocess.run(
            [pythons[framework], str(WORKER.with_name("go_on.py")), *words], cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=200, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert train(first, "save") == pytest.approx(train(second, "load"), rel=1e-5)
