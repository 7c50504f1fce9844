"""`autoddl run`: a script as the ranks of a job, on one host and on several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoddl.runtime.jobs.launch import free_port
from autoddl.tools.cli import main
from tests.ranks import ROOT

# rank 1 ends without a word in the first life; what is started again goes on
SCRIPT = """
import os, sys, time
from pathlib import Path
rank, first = int(os.environ["RANK"]), not Path(sys.argv[1]).exists()
time.sleep(1)  # all have looked
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
with inside("step"):
    if rank == 1 and first:
        Path(sys.argv[1]).touch()
        os._exit(5)
    time.sleep(60 if first else 0)
print("rank", rank, "of", os.environ["WORLD_SIZE"], *sys.argv[2:], flush=True)
"""


def started(*words: str, **more: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AUTODDL_RECORD": "", "AUTODDL_TIMEOUT": "20"}
    return subprocess.Popen(
        [sys.executable, "-m", "autoddl", "run", *words], env={**env, **more},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_hosts_that_each_start_their_ranks_start_a_lost_job_again(script, tmp_path):
    port, mark = str(free_port()), str(tmp_path / "mark")
    hosts = [
        started(
            "--nodes", "2", "--node-rank", str(host), "--gpus-per-node", "1",
            "--master-addr", "127.0.0.1", "--master-port", port, "--max-restarts", "2",
            str(script), mark, "--more", "1",
        )
        for host in range(2)
    ]  # fmt: skip
    for number, host in enumerate(hosts):
        out, _ = host.communicate(timeout=100)
        assert host.returncode == 0, out
        assert f"[{number}] rank {number} of 2 --more 1" in out, out
        assert out.count("starts again (1 more left)") == 1, out


def test_a_rank_of_another_launcher_becomes_the_script(script, tmp_path):
    """It is watched from its start: the rank that ends without a word is named by the other."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        started(str(script), str(tmp_path / "mark"), **job, RANK=str(rank)) for rank in range(2)
    ]
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-9, 5], said
    assert "rank 1 of 2 on" in said[0] and "ended without a word in step 1" in said[0], said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--gpus-per-node is needed"),
        (("--gpus-per-node", "9" * 40), "would take very long, and much memory; give --yes"),
        (("--gpus-per-node", "2", "--node-rank", "1"), "--node-rank: for a job on several hosts"),
        (("--gpus-per-node", "2", "--nodes", "2"), "needs --master-addr, --node-rank"),
        (
            ("--gpus-per-node", "2", "--nodes", "2", "--node-rank", "2", "--master-addr", "a"),
            "hosts of 2 are 0 to 1, got 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(script, words, message):
    found = CliRunner().invoke(main, ["run", *words, str(script)])
    assert found.exit_code == 2 and message in found.output, found.output


def test_a_script_that_is_not_there_is_refused():
    found = CliRunner().invoke(main, ["run", "--gpus-per-node", "2", "none.py"])
    assert found.exit_code == 2 and "none.py: no such file" in found.output
