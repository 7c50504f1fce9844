"""Benchmarks of PyTorch say how they are used."""

import subprocess
import sys

import pytest

from tests.ranks import ROOT

SCRIPTS = [path.stem for path in (ROOT / "benchmarks").glob("torch_*.py")]


def test_there_are_such():
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    command = [sys.executable, "-m", f"benchmarks.{script}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
