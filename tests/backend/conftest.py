"""Tests of the OneFlow back end: skipped without OneFlow; workers run on real processes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autoddl.backend.oneflow.launch import run_processes

pytest.importorskip("oneflow", reason="needs OneFlow")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
Launch = Callable[..., str]


@pytest.fixture
def launch() -> Launch:
    """`launch("steps", 4, *args)` runs workers/steps.py on 4 processes and gives what they print."""

    def run(worker: str, nproc: int, *args: str, timeout: float = 240.0) -> str:
        out = io.StringIO()
        status = run_processes(
            [str(HERE / "workers" / f"{worker}.py"), *args],
            nproc,
            {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "backend")])},
            output=out,
            timeout=timeout,
        )
        assert status == 0, f"status {status}\n{out.getvalue()}"
        return out.getvalue()

    return run
