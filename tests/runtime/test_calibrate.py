"""`autoddl calibrate` on real processes: goes on after an interruption, names who is away."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoddl.cluster.spec import Cluster
from autoddl.runtime.jobs.launch import free_port
from autoddl.runtime.jobs.meeting import Place, introduce
from autoddl.runtime.jobs.secret import SECRET
from autoddl.runtime.measure.record import Record
from tests.runtime.conftest import PATH

LAPTOP = "laptop"
MEET = """
import time
from autoddl.runtime.jobs.meeting import meet
from autoddl.runtime.jobs.guard import install_guard
install_guard()
with meet({limit}) as meeting:
    print("met", meeting.hosts, flush=True)
    time.sleep(60)
"""
NARROW = """
from oneflow import nn, zeros
def narrow():
    return nn.Sequential(nn.Linear(8, 12), nn.GELU()), (zeros(16, 8), zeros(16, 12)), nn.MSELoss()
"""


# OneFlow, which the tests import, sets them
OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def start(words: list[str], **env: str) -> subprocess.Popen[str]:
    outside = {name: value for name, value in os.environ.items() if name not in OURS}
    return subprocess.Popen(
        [sys.executable, *words],
        env={**outside, "PYTHONPATH": PATH, "GLOG_minloglevel": "3", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def calibration(folder: Path, *more: str) -> list[str]:
    return [
        "-m", "autoddl", "calibrate", "--gpus-per-node", "2", "--max-bytes", "8192",
        "--factor", "8", "--repeats", "6", "--device-from", LAPTOP,
        "--output", str(folder / "two.json"), *more,
    ]  # fmt: skip


def done_points(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    return {str(p): t.median_s for p, t in Record.load(path).done().items()}


@pytest.mark.full
def test_an_interrupted_calibration_goes_on_where_it_stopped(tmp_path):
    raw = tmp_path / "two.measurements.json"
    job = start(calibration(tmp_path))
    end = time.monotonic() + 120
    # each state of the file is whole, whenever it is read
    while len(done_points(raw)) < 2 and job.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    text = job.communicate(timeout=60)[0]
    before = done_points(raw)
    assert job.returncode == 143, text
    assert 2 <= len(before) < 10 and not (tmp_path / "two.json").exists()

    again = start(calibration(tmp_path))
    text = again.communicate(timeout=200)[0]
    assert again.returncode == 0, text
    after = done_points(raw)
    assert len(after) == 10  # 2 sizes x (4 collectives, 1 transfer)
    assert {name: after[name] for name in before} == before
    cluster = Cluster.load(tmp_path / "two.json")
    assert cluster.gpus_per_node == 2 and cluster.calibration is not None
    assert cluster.calibration.samples == 10 * 6
    assert cluster.device.flops_per_s == Cluster.load(LAPTOP).device.flops_per_s


@pytest.mark.parametrize("text", ["{", pytest.param('{"version": 1}', marks=pytest.mark.full)])
def test_a_corrupt_record_stops_it_before_any_process_starts(tmp_path, text):
    (tmp_path / "two.measurements.json").write_text(text)
    done = start(calibration(tmp_path))
    output = done.communicate(timeout=60)[0]
    assert done.returncode == 2
    assert "remove it to measure anew" in output
    assert [p.name for p in tmp_path.iterdir()] == ["two.measurements.json"]


def as_rank(rank: int, port: int, size: int = 4) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def test_a_host_that_does_not_come_is_named_in_time(tmp_path):
    port = free_port()
    words = calibration(tmp_path, "--timeout", "3")
    started = time.monotonic()
    jobs = [start(words, **as_rank(rank, port)) for rank in (0, 1)]
    for job in jobs:
        output = job.communicate(timeout=60)[0]
        assert job.returncode not in (0, None)
        assert "no answer within 3 s from rank 2, 3 (host number 1 of" in output
        assert f"rank 0 on {socket.gethostname()}" in output
    assert time.monotonic() - started < 40
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_finds_no_rank_0_says_where_it_looked(tmp_path):
    """And who reads what it says does not wait for its companion, which is to tell another one."""
    port = free_port()
    job = start(calibration(tmp_path, "--timeout", "1"), **as_rank(3, port))
    output = job.communicate(timeout=60)[0]
    assert job.returncode not in (0, None)
    assert f"found no rank 0 at 127.0.0.1:{port} within 1 s" in output


def join(port: int) -> socket.socket:
    """Meet rank 0 at `port` as rank 1 on a host called ghost."""
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as contact:
                other = int(contact.makefile().readline())
            break
        except OSError:
            time.sleep(0.05)
    else:
        raise TimeoutError(f"nobody answers on port {port}")
    return introduce(Place(1, 0, "ghost"), "127.0.0.1", other)


@pytest.mark.parametrize(
    ("silent", "message"),
    [
        (True, "rank 1 on ghost has not answered for 2 s"),
        pytest.param(False, "rank 1 on ghost has ended", marks=pytest.mark.full),
    ],
)
def test_a_host_that_falls_silent_or_ends_is_named(silent, message, monkeypatch):
    port = free_port()
    monkeypatch.setenv(SECRET, "of this job")  # of both
    limit = 2 if silent else 25  # that it has ended is seen at once
    job = start(["-c", MEET.format(limit=limit)], **as_rank(0, port, size=2))
    with join(port) as connection:
        answer = json.loads(connection.makefile().readline())
        assert answer["error"] == "" and [p["rank"] for p in answer["places"]] == [0, 1]
        if silent:
            output = job.communicate(timeout=30)[0]
        else:
            connection.shutdown(socket.SHUT_RDWR)
            output = job.communicate(timeout=30)[0]
    assert "met" in output and message in output
    assert job.returncode == 1


@pytest.mark.full  # the order and the budget of operators are in measure/test_rank.py
def test_operators_of_a_model_are_timed_and_added_to_what_is_there(tmp_path):
    """A second model keeps the first one's operators."""
    (tmp_path / "narrow.py").write_text(NARROW)

    def run(model: str) -> dict[str, list[tuple[float, float, float]]]:
        words = calibration(tmp_path, "--no-point-to-point", "--model", model)
        job = start(words, PYTHONPATH=f"{PATH}{os.pathsep}{tmp_path}")
        text = job.communicate(timeout=200)[0]
        assert job.returncode == 0, text
        return Record.load(tmp_path / "two.measurements.json").operators

    first = run("dlrm_small")
    kinds = {key.split()[0] for key in first}
    assert {"matmul", "broadcast_add", "relu"} <= kinds and "reshape" not in kinds
    for points in first.values():
        assert len(points) == 2  # the whole batch, and half of it on each of two processes
        assert all(forward_s > 0 for _, forward_s, _ in points)
    assert any(backward_s > 0 for key in first for _, _, backward_s in first[key])
    both = run("narrow:narrow")
    assert {key: both[key] for key in first} == first and len(both) > len(first)
    machine = Cluster.load(tmp_path / "two.json")
    assert set(machine.device.operators) == set(both)


def test_a_batch_without_a_model_is_refused(tmp_path):
    job = start(calibration(tmp_path, "--batch", "8"))
    assert "--batch is of a model; give --model, too" in job.communicate(timeout=60)[0]
    assert job.returncode == 2
