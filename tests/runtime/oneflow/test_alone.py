"""OneFlow in a process of its own."""

import subprocess

import pytest

from autoddl.runtime.oneflow.alone import last_lines, run_alone

WORKER = """
import os, sys
print("first")
devices = os.environ["CUDA_VISIBLE_DEVICES"]
print(f"  rank {os.environ.get('RANK')} of {sys.argv[1:]}, devices {devices!r}", flush=True)
print(flush=True)
print("the end", file=sys.stderr)
sys.exit(3)
"""


def test_it_is_no_rank_of_the_job_and_its_last_words_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    (tmp_path / "worker.py").write_text(WORKER)
    assert run_alone("worker", ["plan.json"], tmp_path, 60.0) == 3
    assert last_lines(tmp_path, 2) == "rank None of ['plan.json'], devices '' | the end"


def test_its_time_is_limited(tmp_path):
    (tmp_path / "worker.py").write_text("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        run_alone("worker", [], tmp_path, 0.1)
