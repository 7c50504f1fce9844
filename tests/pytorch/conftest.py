"""Tests of the back end for PyTorch: skipped without it; workers run on real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ranks import ROOT, Jobs

torch = pytest.importorskip("torch", reason="needs torch")
torch.set_num_threads(1)  # two parts of the tests run at once

Launch = Callable[..., str]


@pytest.fixture(scope="session")
def torch_jobs() -> Iterator[Jobs]:
    """Jobs of torch that the tests share."""
    found = Jobs({"PYTHONPATH": str(ROOT)}, ("torch",))
    yield found
    found.end()


@pytest.fixture
def launch(torch_jobs: Jobs) -> Launch:
    """`launch(worker, 4, *args)` runs a worker script on 4 processes; gives what they print."""

    def run(worker: Path, nproc: int, *args: str, timeout: float = 240.0) -> str:
        status, out = torch_jobs.run(worker, nproc, *args, timeout=timeout)
        assert status == 0, f"status {status}\n{out}"
        return out

    return run
