"""Under torchrun, too, a rank that fails ends the job, and is named first.

torchrun ends all processes as soon as one has failed, and the other ranks then say that they have
lost a peer: neither may come before the cause, or keep it from being said.
"""

import os
import re
import subprocess
import sys

import pytest

from autoddl.runtime.jobs.launch import free_port
from tests.ranks import ROOT

LIMIT_SECONDS = 8
WORKER = ROOT / "tests" / "pytorch" / "fail.py"


# The code is the same for both frameworks, and OneFlow's runs are in CI.
pytestmark = pytest.mark.full


def test_what_one_rank_changes_later_is_refused(launch):
    worker = ROOT / "tests" / "runtime" / "workers" / "disagree.py"
    assert "all are refused" in launch(worker, 2)


@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("exit", r"rank 1 of 3 on .* ended without a word in its own code after step 2"),
        ("SIGKILL", r"rank 1 of 3 on .* ended without a word in its own code after step 2"),
        ("raise", r"rank 1 of 3 on .*RuntimeError: no more data"),
        ("SIGSTOP", r"rank 1 of 3 on .* is stopped in its own code after step 2 while rank"),
    ],
)
def test_the_cause_is_named_first(mode, cause, tmp_path):
    record = tmp_path / "record.txt"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3",
         "--master-port", str(free_port()), str(WORKER), mode, "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
             "AUTODDL_TIMEOUT": str(LIMIT_SECONDS), "AUTODDL_RECORD": str(record)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    causes = [line for line in done.stdout.splitlines() if "ends the job" in line]
    assert causes and re.search(cause, causes[0]), done.stdout
    assert "rank 1 of 3 on" in record.read_text()


def test_torchrun_starts_it_again_from_its_last_checkpoint(tmp_path):
    """Torch alone finds where the ranks that have ended listened, and does not start again."""
    found = []
    for kills in (2, 0):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
             "--max-restarts", str(kills), "--master-port", str(free_port()),
             str(WORKER.with_name("again.py")), str(tmp_path / str(kills)), str(kills)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                 "AUTODDL_RECORD": ""},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        found.append(re.findall(r"loss \d .*", done.stdout))
    assert found[0] == found[1] and len(found[0]) == 6, found
