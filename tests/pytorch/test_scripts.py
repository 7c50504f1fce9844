"""Benchmarks of PyTorch say how they are used."""

import runpy
import sys

import pytest

from tests.ranks import ROOT

SCRIPTS = [path.stem for path in (ROOT / "benchmarks").glob("torch_*.py")]


def test_there_are_such():
    assert SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as done:
        runpy.run_module(f"benchmarks.{script}", run_name="__main__")
    assert done.value.code == 0 and "usage:" in capsys.readouterr().out
