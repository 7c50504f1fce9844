"""Jobs that stay run one worker after another, and end with one that fails."""

import re

import pytest

from tests import ranks
from tests.ranks import TIMED_OUT, Jobs

WORKER = """
import os, sys, time
from autoddl.runtime.jobs.guard import rank
print(rank(), "is process", os.getpid(), sys.argv[1:], flush=True)
if rank() == 1 and "raises" in sys.argv:
    raise ValueError("no more data")
if rank() == 1 and "leaves" in sys.argv:
    sys.exit(7)
if rank() == 1 and "dies" in sys.argv:
    os._exit(9)
if len(sys.argv) > 1:
    time.sleep(60)
"""


TAKES = """
import sys
import oneflow as flow
with open("/proc/self/status") as file:
    held = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
print(f"holds {held} kB")
tensors = [flow.ones(2**20) for _ in range(int(sys.argv[1]))]
tensors[-1].numpy()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.1)
    not_listening = "from autoddl.runtime.jobs import launch; launch.LISTEN_SECONDS = 0; "
    monkeypatch.setattr(ranks, "START", not_listening + ranks.START)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    jobs = Jobs({"PYTHONPATH": str(ranks.ROOT)}, modules=())
    yield lambda size, *words, timeout=60.0: jobs.run(script, size, *words, timeout=timeout)
    jobs.end()


def processes(text: str) -> dict[str, str]:
    return dict(re.findall(r"\[(\d)\] \1 is process (\d+)", text))


def test_workers_share_a_job_until_one_fails(run):
    first = run(2)
    assert first[0] == 0 and processes(first[1]).keys() == {"0", "1"}
    assert run(2) == first
    status, text = run(2, "raises")
    assert status == 1 and "[1] ValueError: no more data" in text
    assert processes(text)["1"] == processes(first[1])["1"]
    status, text = run(2, "leaves")
    assert status == 7
    assert not set(processes(text).values()) & set(processes(first[1]).values())
    assert run(2, "dies")[0] == 1
    assert run(2, "waits", timeout=0.1)[0] == TIMED_OUT
    assert run(2)[0] == 0


def test_there_are_not_too_many_ranks_at_once(run, monkeypatch):
    monkeypatch.setattr(ranks, "MOST", 2)
    one = run(1)
    assert run(1) == one
    run(2)
    assert run(1) != one


def test_a_worker_leaves_no_memory_taken(tmp_path):
    pytest.importorskip("oneflow", reason="takes memory by OneFlow's allocator")
    script = tmp_path / "worker.py"
    script.write_text(TAKES)
    jobs = Jobs({"PYTHONPATH": str(ranks.ROOT)})

    def held_mb(tensors: int) -> float:
        status, text = jobs.run(script, 1, str(tensors), timeout=60.0)
        assert status == 0, text
        found = re.search(r"holds (\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1e3

    try:
        held_mb(1)
        before = held_mb(100)  # of 4 MB each
        assert held_mb(1) < before + 100
    finally:
        jobs.end()
