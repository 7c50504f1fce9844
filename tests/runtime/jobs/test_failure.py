"""A rank that fails ends the whole job soon, says why, and leaves nothing running."""

import os
import re
import subprocess
import sys
import time

import pytest

from autoddl.runtime.jobs.launch import free_port
from tests.runtime.conftest import HERE, PATH, run_worker

SECONDS = 30.0
LIMIT = "8"  # without progress


def under_our_launcher(mode: str, record: str = "") -> tuple[int, str]:
    env = {"AUTODDL_TIMEOUT": LIMIT, "AUTODDL_RECORD": record}
    return run_worker("fail", 2, mode, "1", timeout=90, env=env)


def under_oneflows_launcher(mode: str) -> tuple[int, str]:
    script = str(HERE / "workers" / "fail.py")
    command = [
        sys.executable, "-m", "oneflow.distributed.launch", "--nproc_per_node", "2",
        "--master_port", str(free_port()), script, mode, "1",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "PYTHONPATH": PATH,
            "GLOG_minloglevel": "2",
            "AUTODDL_TIMEOUT": LIMIT,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return done.returncode, done.stdout


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


OURS = [
    ("raise", "RuntimeError: no more data"),
    ("step", "the optimizer of rank 1 is broken"),
    ("exchange", "rank 1 has lost its gradients"),
    ("exit", r"sys.exit\(7\)"),
    ("kill", "rank 1 of 2 .* and ends the job"),
    (
        "stop",
        "rank 1 of 2 on .* is stopped in its own code after step 1 while rank 0",
    ),
    ("sleep", "rank 1 of 2 on .* has done nothing for 8 s in its own code after step 1"),
    ("vanish", "rank 1 of 2 on .* ended without a word in its own code after step 1"),
    ("late", "rank 1 of 2 on .* has done nothing for 8 s before parallelize while rank 0 waits in"),
    ("leave", "exit on rank 1"),
    ("alone", "state_dict on rank 1"),
    ("shape", "step with a batch of 4 rows on rank 1"),
    ("early", "before anything was shared"),
]
# with two micro-batches in flight, after which the rest is as without
TURNS = ("turns", "rank 1 has lost its gradients")
# a job takes seconds to start, and longer with OneFlow's launcher
SLOW = ("sleep", "late")
# what others see as well, in jobs that they share or that need no framework: calls that differ
# (`workers/disagree.py`), an end without a word, an error and a killed rank (test_guard.py), a stop
# (test_strangers.py)
SEEN = ("alone", "shape", "vanish", "raise", "kill", "stop")
ALIKE = ("exchange", "exit")  # end as "step" and "leave" do


@pytest.mark.parametrize(
    ("start", "mode", "message"),
    [
        *(
            pytest.param(
                under_our_launcher,
                mode,
                message,
                marks=pytest.mark.full if mode in SLOW + SEEN + ALIKE else (),
            )
            for mode, message in OURS
        ),
        pytest.param(under_our_launcher, *TURNS, marks=pytest.mark.full),
        *(pytest.param(under_oneflows_launcher, *one, marks=pytest.mark.full) for one in OURS),
    ],
)
def test_one_failing_rank_ends_the_job(start, mode, message):
    status, out = start(mode)
    assert status not in (0, 124), out
    assert re.search(message, out), out
    (failed_at,) = re.findall(r"failing at ([\d.]+)", out)
    pids = [int(pid) for pid in re.findall(r"is process (\d+)", out)]
    assert len(pids) == 2 or mode in ("early", "late"), out
    while any(map(is_running, pids)) and time.time() < float(failed_at) + SECONDS:
        time.sleep(0.2)
    assert not any(map(is_running, pids)), out
    assert time.time() < float(failed_at) + SECONDS, out


def test_what_each_rank_did_last_is_written_down(tmp_path):
    """Also where the other rank's framework aborts at once, as its peer is gone."""
    record = tmp_path / "record.txt"
    _, out = under_our_launcher("exchange", str(record))
    assert f"what each rank did last is in {record}" in out, out
    zero, one = record.read_text().split("rank 1 of 2 on ")
    assert zero.startswith("rank 0 of 2 on ")
    for text in (zero, one):
        assert re.search(r"\d\d:\d\d:\d\d\.\d{6}  step 2 begins\n", text)
        assert re.search(r"of ranks 0, 1 for the gradient of \w+\.weight\n", text)
    assert one.endswith("step 2 fails\n")
