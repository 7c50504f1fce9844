"""The launcher, with scripts that need no OneFlow."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoddl.runtime.jobs.launch import free_port, run_processes

SHOW = "import os; print(*(os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'EXTRA')))"
# in one write: lines that ranks print unbuffered, as under OneFlow's launcher, mix with one another
SAY_PID = r"os.write(1, b'%d\n' % os.getpid())"
# rank 0 listens as OneFlow's does, so that the launcher goes on
LISTEN = (
    "import os, socket\n"
    "if os.environ['RANK'] == '0':\n"
    "    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "    s.bind(('127.0.0.1', int(os.environ['MASTER_PORT']))); s.listen()\n"
)


def script(folder: Path, text: str) -> list[str]:
    path = folder / "script.py"
    path.write_text(text)
    return [str(path)]


def run(folder: Path, text: str, nproc: int, **options) -> tuple[int, str]:
    out = io.StringIO()
    status = run_processes(script(folder, text), nproc, output=out, **options)
    return status, out.getvalue()


def launched(*words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """A launcher whose output is read."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
    )


def test_every_rank_gets_its_place(tmp_path):
    status, out = run(tmp_path, SHOW, 3, env={"EXTRA": "more"})
    assert status == 0
    assert sorted(out.splitlines()) == [f"[{r}] {r} {r} 3 more" for r in range(3)]


def test_ranks_that_overlap_have_cores_of_their_own(tmp_path):
    show = "import os; print(os.sched_getaffinity(0))"
    cores = sorted(os.sched_getaffinity(0))
    _, out = run(tmp_path, show, len(cores), overlaps=True, prefix=False)
    assert sorted(out.splitlines()) == sorted(str({core}) for core in cores)
    _, out = run(tmp_path, show, len(cores) + 1, overlaps=True, prefix=False)
    assert out.splitlines() == [str(set(cores))] * (len(cores) + 1)


def test_ranks_that_overlap_compute_beside_transfers(tmp_path, monkeypatch):
    """On few cores OneFlow computes on its scheduling thread, unless transfers would wait there."""
    name = "ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    show = f"import os; print(os.environ.get({name!r}))"
    for nproc, overlaps, value in ((1, False, "None"), (2, False, "0"), (2, True, "None"),
                                   (3, True, "0")):  # fmt: skip
        _, out = run(tmp_path, show, nproc, overlaps=overlaps, prefix=False)
        assert out.splitlines() == [value] * nproc


def test_ranks_free_what_was_read_at_once(tmp_path, monkeypatch):
    """OneFlow would wait for up to ten operations; what the user has set stays."""
    name = "ONEFLOW_VM_PENDING_HANDLE_WINDOW_SIZE"
    monkeypatch.delenv(name, raising=False)
    show = f"import os; print(os.environ.get({name!r}))"
    assert run(tmp_path, show, 1) == (0, "1\n")
    monkeypatch.setenv(name, "4")
    assert run(tmp_path, show, 1) == (0, "4\n")


def test_one_process_has_no_prefix(tmp_path):
    assert run(tmp_path, "print('alone')", 1) == (0, "alone\n")


def test_first_failure_ends_the_others_and_what_they_started(tmp_path):
    text = LISTEN + (
        "import subprocess, sys, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    print('child', child.pid, flush=True); time.sleep(600)\n"
        "time.sleep(1); sys.exit(5)\n"
    )
    started = time.monotonic()
    status, out = run(tmp_path, text, 2)
    assert status == 5
    assert time.monotonic() - started < 20
    assert _ends_soon(int(out.split("child ")[1].split()[0]))


def test_a_killed_rank_gives_the_shells_status(tmp_path):
    text = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    status, out = run(tmp_path, LISTEN + text, 2)
    assert status == 128 + signal.SIGKILL
    assert "rank 1 of 2 was killed by SIGKILL and ends the job" in out


def test_timeout(tmp_path):
    status, _ = run(tmp_path, "import time; time.sleep(600)", 1, timeout=0.5)
    assert status == 124


@pytest.mark.parametrize(
    ("number", "status", "first"),
    [
        (signal.SIGINT, 130, ""),
        (signal.SIGTERM, 143, ""),
        pytest.param(signal.SIGINT, 130, "import oneflow", marks=pytest.mark.full),
    ],
)
def test_a_signal_to_the_launcher_ends_the_ranks(tmp_path, number, status, first):
    """Also with OneFlow's own handler, which ends a process at once."""
    if first:
        pytest.importorskip("oneflow", reason="needs OneFlow")
    path = script(tmp_path, f"import os, time; {SAY_PID}; time.sleep(600)")
    launch = "from autoddl.runtime.jobs.launch import *"
    code = f"{first}\n{launch}\nsys.exit(run_processes({path}, 1))"
    with launched("-c", code) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        launcher.send_signal(number)
        assert launcher.wait(timeout=20) == status
    assert _has_ended(rank)


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path):
    text = f"import time; {SAY_PID}; time.sleep(600)"
    path = script(tmp_path, LISTEN + text)
    code = f"from autoddl.runtime.jobs.launch import *\nrun_processes({path}, 2, prefix=False)"
    with launched("-c", code) as launcher:
        assert launcher.stdout is not None
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.kill()
    assert all(_ends_soon(rank) for rank in ranks)


@pytest.mark.full
def test_ranks_do_not_outlive_oneflows_launcher(tmp_path):
    """It ends them itself only if it leads its process group, which it does not here."""
    pytest.importorskip("oneflow", reason="needs OneFlow")
    path = script(
        tmp_path,
        "import os, time\n"
        "from autoddl.runtime.jobs.guard import install_guard\n"
        f"install_guard(); {SAY_PID}; time.sleep(600)\n",
    )
    command = ["-m", "oneflow.distributed.launch", "--nproc_per_node", "2",
               "--master_port", str(free_port())]  # fmt: skip
    with launched(*command, *path, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        said = (line.strip() for line in launcher.stdout)
        numbers = (int(line) for line in said if line.isdigit())
        ranks = [next(numbers), next(numbers)]
        launcher.send_signal(signal.SIGINT)
        launcher.stdout.close()
        launcher.wait(timeout=20)
    assert all(_ends_soon(rank) for rank in ranks)


@pytest.mark.full
def test_ranks_of_oneflows_launcher_say_nothing_of_gpus_that_are_not_there(tmp_path):
    """What they import after autoddl starts without the warnings of OneFlow's libraries."""
    pytest.importorskip("oneflow", reason="needs OneFlow")
    path = script(tmp_path, "import autoddl, oneflow; print('ready')")
    words = ["-m", "oneflow.distributed.launch", "--nproc_per_node", "2",
             "--master_port", str(free_port())]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if k != "GLOG_minloglevel"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, *words, *path], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.stdout.count("ready") == 2, done.stderr
    process = re.compile(r"^[IWE]\d+ [\d:.]+ +(\d+) ", re.MULTILINE)  # of each warning
    # of the launcher alone, which is not ours
    assert len(set(process.findall(done.stderr))) <= 1, done.stderr


def test_a_second_interrupt_does_not_spare_the_ranks(tmp_path):
    """The ranks ignore SIGTERM, so that the launcher waits for them when it comes."""
    text = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"{SAY_PID}; time.sleep(600)\n"
    )
    code = (
        "from autoddl.runtime.jobs.launch import *\n"
        f"try: run_processes({script(tmp_path, text)}, 1)\n"
        "except KeyboardInterrupt: time.sleep(600)\n"
    )
    with launched("-c", code) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        for _ in range(2):
            launcher.send_signal(signal.SIGINT)
            time.sleep(0.5)
        goes_on, ended = launcher.poll() is None, _ends_soon(rank)
        launcher.kill()
    assert goes_on and ended


def test_no_processes_is_a_mistake():
    with pytest.raises(ValueError, match="at least one process"):
        run_processes(["nothing.py"], 0)


def test_free_port_is_none_that_outgoing_connections_get():
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10 and all(1024 <= port < 32768 for port in ports)


def _ends_soon(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not _has_ended(pid):
        time.sleep(0.05)
    return _has_ended(pid)


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_cause_comes_before_what_frameworks_say_when_they_abort(tmp_path):
    """Rank 1 loses rank 0 and says so at length, before anyone has seen that rank 0 was killed."""
    text = """
import os, signal, time
if os.environ["RANK"] == "0":
    print("before", flush=True)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
print("F20261125 19:12:11.820511 25890 poller.cpp:95] Check failed", flush=True)
print("    @     0x7f08fe7d09ca  Fail()", flush=True)
time.sleep(30)
"""
    status, out = run(tmp_path, text, 2)
    assert status == 137
    assert [line.partition(" ")[2][:12] for line in out.splitlines()] == [
        "before", "0 of 2 was k", "F20261125 19", "    @     0x"
    ], out  # fmt: skip


@pytest.mark.parametrize(
    "word, said", [
        pytest.param(
            "", "rank 0 of 2 was killed by SIGABRT and ends the job", marks=pytest.mark.full),
        ("rank 1 of 2 on a ended without a word in step 3 and ends the job",
         "rank 0 of 2 was killed by SIGABRT and ends the job: rank 1 lost its connection to it"),
    ],
)  # fmt: skip
def test_a_rank_that_aborts_as_it_lost_another_is_not_the_cause(word, said, tmp_path):
    """Though it ends first, and its companion says so."""
    text = f"""{LISTEN}
import time
ends = {str(tmp_path / "ends")!r}
if os.environ["RANK"] == "1":
    print("F20261126 04:34:17.352185 16064 io_event_poller.cpp:95] Check failed", flush=True)
    open(ends, "w").close()
    os.abort()
while not os.path.exists(ends):
    time.sleep(0.01)
time.sleep(0.2)
if {word!r}:  # long enough after both ends for a busy machine to see them
    os.system("(sleep 1; echo '{word}') &")
os.abort()
"""
    status, out = run(tmp_path, text, 2, prefix=False)
    assert status == 134
    first = next(line for line in out.splitlines() if "ends the job" in line)
    assert first == said, out


def test_what_frameworks_say_is_not_lost(tmp_path):
    status, out = run(tmp_path, "print('F20261125 19:12:11.820511 1 a.cpp:95] so', flush=True)", 2)
    assert status == 0 and out.count("a.cpp:95] so") == 2
