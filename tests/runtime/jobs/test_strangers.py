"""Strangers who reach a job's sockets neither end nor delay it, nor are taken for a rank.

The ranks need no framework.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from autoddl.runtime.jobs.launch import free_port
from tests.runtime.conftest import PATH
from tests.runtime.jobs.test_launch import run, script

LIMIT_SECONDS = 3

# Everything that a stranger may say, and nothing, on more connections than are kept.
STRANGER = """
import json, os, socket, struct, time
kept = []
def stranger(port, *words):
    for word in (b"", b"\\xff" * 3000, b"{}\\n", b"[]\\n1\\n", b"[" * 60000 + b"\\n", *words):
        for _ in range(60):
            one = socket.create_connection((os.environ["MASTER_ADDR"], port), 5)
            one.settimeout(0.2)
            try:
                one.sendall(word)
            except OSError:
                pass  # closed: it has been found out
            kept.append(one)
"""

WATCHED = (
    STRANGER
    + """
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
rank = int(os.environ["RANK"])
if rank == 0:
    false = {"rank": 1, "proof": "0" * 64, "nonce": "0"}
    lie = {"rank": 1, "is_dead": True, "ended": False}
    time.sleep(1)
    stranger(int(os.environ["AUTODDL_WATCH_PORT"]),
             *(f"{json.dumps(one)}\\n{json.dumps(lie)}\\n".encode() for one in (
                 false, {**false, "rank": 0}, {**false, "rank": 9}, {**false, "proof": None})))
with inside("step"):
    time.sleep(2)
print("a step is over", time.time(), flush=True)
if rank == 1:
    os.kill(os.getpid(), 19)
with inside("step"):
    time.sleep(60)
"""
)


def test_strangers_at_the_watch(tmp_path):
    """The job is watched as before: a rank that is stopped afterwards is named in time."""
    env = {"AUTODDL_TIMEOUT": str(LIMIT_SECONDS), "AUTODDL_RECORD": ""}
    status, out = run(tmp_path, WATCHED, 2, env=env, timeout=50)
    assert status not in (0, 124), out
    assert out.count("a step is over") == 2, out
    causes = [line for line in out.splitlines() if "ends the job" in line]
    assert re.search(r"rank 1 of 2 .* is stopped in its own code after step 1", causes[0]), out
    at = max(map(float, re.findall(r"step is over ([\d.]+)", out)))
    assert time.time() < at + LIMIT_SECONDS + 12, out


GOES_ON = """
import os, time
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
with inside("step"):
    time.sleep(4)
print("a step is over", flush=True)
if os.environ["RANK"] == "1":
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.full
def test_a_stranger_where_the_watch_should_be(tmp_path):
    """The companions meet elsewhere, and believe nothing of what it says."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen(64)
        threading.Thread(target=_lie_to_all, args=(listener,), daemon=True).start()
        port = str(listener.getsockname()[1])
        env = {"AUTODDL_TIMEOUT": "20", "AUTODDL_RECORD": "", "AUTODDL_WATCH_PORT": port}
        status, out = run(tmp_path, GOES_ON, 2, env=env, timeout=50)
    assert out.count("a step is over") == 2, out
    assert status not in (0, 124) and "rank 1 of 2" in out and "ends the job" in out, out


def _lie_to_all(listener: socket.socket) -> None:
    while True:
        try:
            one, _ = listener.accept()
            one.sendall(b'{"nonce": "1"}\n{"proof": "1"}\n{"over": true}\n')
        except OSError:
            return


TWICE = """
import os, sys, time
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
print("watched", flush=True)
with inside("step"):
    time.sleep(1.5)
if sys.argv[1] == "second" and os.environ["RANK"] == "1":
    os._exit(0)
with inside("step"):
    time.sleep(4)
"""


@pytest.mark.full
def test_a_job_started_twice(tmp_path):
    """Without a secret of the launcher's the ranks of both prove the same; the first goes on."""
    job = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
        "PYTHONPATH": PATH, "AUTODDL_TIMEOUT": "20", "AUTODDL_RECORD": "",
    }  # fmt: skip

    def start(name: str) -> list[subprocess.Popen[str]]:
        return [
            subprocess.Popen(
                [sys.executable, *script(tmp_path, TWICE), name],
                env={**os.environ, **job, "RANK": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip

    first = start("first")
    for one in first:
        assert one.stdout is not None and one.stdout.readline() == "watched\n"
    time.sleep(1)
    second = start("second")
    said = [one.communicate(timeout=60)[0] for one in (*first, *second)]
    assert [one.returncode for one in first] == [0, 0], said
    assert second[0].returncode == -signal.SIGKILL and "rank 1 of 2" in said[2], said


MEET = (
    STRANGER
    + """
from autoddl.runtime.jobs.guard import install_guard
from autoddl.runtime.jobs.meeting import meet
rank = int(os.environ["RANK"])
if rank == 1:
    time.sleep(0.5)
    place = {"rank": 1, "local_rank": 0, "host": "false"}
    hello = {"place": place, "proof": "0" * 64, "nonce": "0"}
    first = int(os.environ["MASTER_PORT"])
    with socket.create_connection((os.environ["MASTER_ADDR"], first), 5) as contact:
        second = int(contact.makefile().readline())
    for port in (first, second):
        stranger(port, json.dumps(hello).encode() + b"\\n", json.dumps(place).encode() + b"\\n")
    # once rank 0 has met everyone its framework listens
started = time.time()
if rank == 0:
    found = meet(15)
    one = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
else:
    found = meet(15)
with found:
    met = [str(place) for place in found.places]
    print(f"met {met} {time.time() - started:.1f}", flush=True)
    time.sleep(1)
"""
)


@pytest.mark.full
def test_strangers_at_the_meeting(tmp_path):
    status, out = run(tmp_path, MEET, 2, timeout=60)
    assert status == 0, out
    assert out.count("met ['rank 0 on ") == 2 and "false" not in out, out
    (seconds,) = re.findall(r"\[1\] met .* ([\d.]+)$", out, re.M)
    assert float(seconds) < 10, out


def test_the_watch_listens_on_the_jobs_address_only(tmp_path):
    text = """
import os, socket, time
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
time.sleep(1.5)
if os.environ["RANK"] == "0":
    port = f"{int(os.environ['AUTODDL_WATCH_PORT']):04X}"
    for line in open("/proc/net/tcp").read().splitlines()[1:]:
        address, _, at = line.split()[1].partition(":")
        if at == port and line.split()[3] == "0A":
            print("listens on", address, flush=True)
"""
    status, out = run(tmp_path, text, 2)
    assert status == 0 and "listens on 0100007F" in out, out
    assert out.count("listens on") == 1, out
