"""A machine is measured by torch's own collectives and operators."""

import os
import subprocess
import sys

import pytest

from autoddl.cluster.spec import Cluster
from tests.ranks import ROOT

MODEL = """
import torch
from torch import nn


def small(batch=16):
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, (torch.randn(batch, 64), torch.zeros(batch).long()), nn.functional.cross_entropy
"""


@pytest.mark.full
def test_a_machine_and_a_models_operators(tmp_path):
    """The model says which framework measures."""
    (tmp_path / "small_model.py").write_text(MODEL)
    done = subprocess.run(
        [sys.executable, "-m", "autoddl", "calibrate", "--gpus-per-node", "2", "--quick",
         "--budget", "10", "--output", "mine.json", "--model", "small_model:small"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    device = Cluster.load(tmp_path / "mine.json").device
    assert {"float32", "bfloat16", "float16"} <= device.flops_per_s.keys()
    assert "operators of models timed by themselves" in done.stdout
