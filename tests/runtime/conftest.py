"""Tests of the runtime on this environment's framework; workers run on real processes."""

import io
import signal
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from autoddl.runtime.jobs.launch import run_processes
from tests.ranks import Jobs

if not find_spec("oneflow"):
    pytest.importorskip("torch", reason="needs OneFlow or PyTorch")

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATH = str(ROOT)
Launch = Callable[..., str]


def run_worker(
    worker: str, nproc: int, *args: str, timeout: float, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run workers/`worker`.py on `nproc` processes; its status and what they print."""
    out = io.StringIO()
    status = run_processes(
        [str(HERE / "workers" / f"{worker}.py"), *args],
        nproc,
        {"PYTHONPATH": PATH, **(env or {})},
        output=out,
        timeout=timeout,
    )
    if status == 128 + signal.SIGINT:  # the launcher takes Ctrl-C for the end of its job
        raise KeyboardInterrupt
    return status, out.getvalue()


@pytest.fixture
def launch(jobs: Jobs) -> Launch:
    """`launch("steps", 4, *args)` runs workers/steps.py on 4 processes; gives what they print."""

    def run(worker: str, nproc: int, *args: str, timeout: float = 240.0) -> str:
        script = HERE / "workers" / f"{worker}.py"
        status, out = jobs.run(script, nproc, *args, timeout=timeout)
        assert status == 0, f"status {status}\n{out}"
        return out

    return run
