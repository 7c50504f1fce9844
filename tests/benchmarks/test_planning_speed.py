"""The benchmark of planning still finds all functions that it times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_one_case_is_measured_with_where_its_time_goes():
    pytest.importorskip("oneflow", reason="traces a model")
    command = [sys.executable, "-m", "benchmarks.planning_speed", "--one", "vgg13_16"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["gap"] < 4e-6
    assert {"strategies", "tables", "path prices", "placements"} <= set(found["phases_cpu_s"])
    assert sum(found["phases_cpu_s"].values()) == pytest.approx(found["cpu_s"], abs=0.02)
