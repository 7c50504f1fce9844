"""The first cause is named first, whatever hooks, peers and launchers do; without a framework."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time

import pytest

from autoddl.runtime.jobs.launch import free_port
from tests.runtime.conftest import PATH
from tests.runtime.jobs.test_launch import LISTEN, run, script

ENV = {"AUTODDL_TIMEOUT": "4", "AUTODDL_RECORD": ""}
GUARDED = (
    LISTEN
    + """
import io, os, sys, time
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
rank = int(os.environ["RANK"])
time.sleep(1)  # the companions meet
"""
)


def first_cause(out: str) -> str:
    return next((line for line in out.splitlines() if "ends the job" in line), out)


def test_an_error_is_shown_behind_a_hook_that_collects_it_first(tmp_path):
    """torch.distributed's hook puts the rank before each line of what the hook before it writes."""
    text = GUARDED + (
        "before = sys.excepthook\n"
        "def collecting(*error):\n"
        "    sys.stderr = kept = io.StringIO()\n"
        "    before(*error)\n"
        "    sys.__stderr__.write(kept.getvalue())\n"
        "sys.excepthook = collecting\n"
        "if rank == 1: raise RuntimeError('no more data')\n"
        "time.sleep(30)\n"
    )
    status, out = run(tmp_path, text, 2, env=ENV, timeout=40)
    assert status == 1
    assert re.search(r"rank 1 of 2 on .*RuntimeError: no more data", first_cause(out)), out


def test_one_who_has_lost_a_peer_lets_the_cause_come_first(tmp_path):
    """As torch does at once, and OneFlow by an abort."""
    text = GUARDED + (
        "with inside('step'):\n"
        "    if rank == 1: os._exit(0)\n"
        "    time.sleep(0.1)\n"
        "    raise RuntimeError('[pair.cc:553] Connection closed by peer [127.0.0.1]:2995')\n"
    )
    status, out = run(tmp_path, text, 2, env=ENV, timeout=40)
    assert status not in (0, 124)
    assert "rank 1 of 2 on" in first_cause(out) and "in step 1" in first_cause(out), out


def test_a_rank_that_ends_before_its_companion_has_met_rank_0s(tmp_path):
    """It is told as soon as rank 0 has come, and not after a minute of silence."""
    text = LISTEN + (
        "import time\n"
        "if os.environ['RANK'] == '0': time.sleep(2)\n"
        "from autoddl.runtime.jobs.guard import install_guard\n"
        "install_guard()\n"
        "if os.environ['RANK'] == '1': os._exit(0)\n"
        "time.sleep(60)\n"
    )
    started = time.monotonic()
    status, out = run(tmp_path, text, 2, env=ENV, timeout=90)
    assert status not in (0, 124) and time.monotonic() - started < 40
    assert "rank 1 of 2 on" in first_cause(out) and "before parallelize" in first_cause(out), out


def test_a_rank_that_ends_before_it_imports_anything(tmp_path):
    """The launcher watches it from its start, as its own status, 0, says nothing."""
    text = "import os\nif os.environ['RANK'] == '1': os._exit(0)\n" + GUARDED + (
        "with inside('step'): time.sleep(30)\n"
    )  # fmt: skip
    status, out = run(tmp_path, text, 2, env=ENV, timeout=40)
    assert status not in (0, 124)
    assert re.search(r"rank 1 of 2 .*(before it had come, while rank 0 waits in step 1|not come)",
                     first_cause(out)), out  # fmt: skip


def test_the_watch_over_ipv6(tmp_path):
    text = GUARDED.removeprefix(LISTEN) + "if rank == 1: os._exit(0)\ntime.sleep(30)\n"
    job = {"MASTER_ADDR": "::1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *script(tmp_path, text)],
            env={**os.environ, **job, **ENV, "PYTHONPATH": PATH, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=40)[0] for rank in ranks]
    assert "rank 1 of 2 on" in said[0] and "ended without a word before parallelize" in said[0]


@pytest.mark.full
def test_ranks_that_reach_no_watch_train_on_and_leave_nothing(tmp_path):
    """As behind a firewall that lets the framework through alone."""
    text = (
        "import time\n"
        "from autoddl.runtime.jobs.guard import inside, install_guard\n"
        "install_guard()\n"
        "for _ in range(7):\n"
        "    with inside('step'): time.sleep(10)\n"
        "print('trained')\n"
    )
    job = {"WORLD_SIZE": "2", "AUTODDL_SECRET": "a", "PYTHONPATH": PATH}
    ranks = [
        subprocess.Popen(
            [sys.executable, *script(tmp_path, text)],
            env={**os.environ, **job, "RANK": str(rank), "MASTER_PORT": str(free_port())},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=150)[0] for rank in ranks]  # when companions have ended, too
    assert [rank.returncode for rank in ranks] == [0, 0] and "trained" in said[0], said
    assert "rank 1 of 2 on" in said[1] and "reaches no watch of rank 0's" in said[1], said


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("WORLD_SIZE", "x", "WORLD_SIZE in the environment is from 1, got 'x'"),
        ("RANK", "2", "RANK in the environment is from -1 to 1, got '2'"),
        ("MASTER_PORT", "99999", "MASTER_PORT in the environment is from 1 to 65535"),
        ("AUTODDL_WATCH_PORT", "a", "AUTODDL_WATCH_PORT in the environment is from 1 to 65535"),
        ("AUTODDL_TIMEOUT", "nan", "AUTODDL_TIMEOUT is a number of seconds, 0 for no limit"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(name, value, told):
    job = {"WORLD_SIZE": "2", "RANK": "0", "PYTHONPATH": PATH, name: value}
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import autoddl"], env={**os.environ, **job},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode and told in done.stderr.splitlines()[-1], done.stderr


def test_scripts_that_import_nothing_of_ours_are_left_alone(tmp_path):
    text = "import os, time; time.sleep(2 * int(os.environ['RANK'])); print('done')"
    status, out = run(tmp_path, text, 3, env={**ENV, "AUTODDL_TIMEOUT": "1"}, timeout=40)
    assert status == 0 and out.count("done") == 3 and "ends the job" not in out, out


def test_a_rank_that_is_killed_is_named_with_what_it_did(tmp_path):
    text = GUARDED + (
        "with inside('step'):\n"
        "    if rank == 1: os.kill(os.getpid(), 9)\n"
        "    time.sleep(30)\n"
    )  # fmt: skip
    status, out = run(tmp_path, text, 2, env=ENV, timeout=40)
    assert status == 128 + signal.SIGKILL
    assert re.search(r"rank 1 of 2 on .* was killed by SIGKILL in step 1", first_cause(out)), out


@pytest.mark.parametrize("is_late", [pytest.param(False, marks=pytest.mark.full), True])
def test_a_launcher_that_ends_all_at_once_does_not_hide_the_cause(tmp_path, is_late):
    """torchrun sends SIGTERM to all processes of the other ranks as soon as one has failed.

    Their companions may hear of that before they hear of the rank.
    """
    text = GUARDED + (
        "with inside('step'):\n"
        "    print('runs', flush=True)\n"
        "    if rank == 1: sys.stdin.readline(); os._exit(5)\n"
        "    time.sleep(30)\n"
    )  # fmt: skip
    job = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
        "AUTODDL_SECRET": secrets.token_hex(8), "PYTHONPATH": PATH, **ENV,
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, *script(tmp_path, text)], start_new_session=True,
            env={**os.environ, **job, "RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for one in ranks:
        assert one.stdout is not None and "runs" in one.stdout.readline()
    time.sleep(1.0)  # until the companions know of each other
    for ends in (True, False) if is_late else (False, True):
        if ends:
            os.killpg(ranks[0].pid, signal.SIGTERM)
        else:
            assert ranks[1].stdin is not None
            ranks[1].stdin.write("\n")
            ranks[1].stdin.flush()
            assert ranks[1].wait(timeout=30) == 5
            time.sleep(0.0 if is_late else 0.1)
    out, _ = ranks[0].communicate(timeout=20)
    ranks[1].communicate(timeout=20)
    assert re.search(r"rank 1 of 2 on .* ended without a word in step 1", first_cause(out)), out


def test_a_job_that_is_told_to_end_has_no_cause(tmp_path):
    text = GUARDED + "print('runs', flush=True)\nwith inside('step'): time.sleep(30)\n"
    path = script(tmp_path, text)
    launch = f"from autoddl.runtime.jobs.launch import *\nsys.exit(run_processes({path}, 2))"
    with subprocess.Popen(
        [sys.executable, "-c", launch], env={**os.environ, "PYTHONPATH": PATH, **ENV},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as launcher:  # fmt: skip
        assert launcher.stdout is not None
        for _ in range(2):
            assert "runs" in launcher.stdout.readline()
        launcher.send_signal(signal.SIGTERM)
        out, _ = launcher.communicate(timeout=30)
    assert launcher.returncode == 143 and "ends the job" not in out, out


@pytest.mark.parametrize(
    ("trap", "status"),
    [("", -signal.SIGINT), pytest.param("trap '' INT;", 0, marks=pytest.mark.full)],
)
def test_the_interrupt_of_a_rank_is_named(trap, status):
    """OneFlow's own handler would run what is registered for the process's end, in C++.

    Shells start what is to run in the background so that it ignores the interrupt.
    """
    pytest.importorskip("oneflow", reason="needs OneFlow")
    text = (
        "import os, signal, time; import oneflow\n"
        "os.environ |= {'WORLD_SIZE': '2', 'RANK': '1', 'AUTODDL_TIMEOUT': '0'}\n"
        "from autoddl.runtime.jobs.guard import install_guard\n"
        "install_guard(); os.kill(os.getpid(), signal.SIGINT)"
    )
    done = subprocess.run(
        ["sh", "-c", f'{trap} exec "$0" -c "$1"', sys.executable, text],
        env={**os.environ, "PYTHONPATH": PATH},
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert done.returncode == status
