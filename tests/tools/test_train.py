"""`autoddl train` on real processes, and what it refuses before it starts any."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoddl.cluster.spec import Cluster
from autoddl.tools import train as job
from autoddl.tools.cli import main

ROOT = Path(__file__).parents[2]
LAPTOP = "laptop"
MODEL = "gpt_small"


def run(*words: str, **added: str) -> subprocess.CompletedProcess[str]:
    """added: to the environment"""
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    clean |= added
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=240
    )


def train(*words: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "autoddl", "train", MODEL, "--cluster", LAPTOP, *words)


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"^step +\d+  loss (\S+)", output, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone():
    """The losses of three steps on one process."""
    done = train("--nodes", "1", "--gpus-per-node", "1", "--steps", "3")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 3
    return losses(done.stdout)


@pytest.fixture
def refused(monkeypatch):
    """`refused(*words)`: what `autoddl train` says that ends before any process starts."""

    def started(*words, **options):
        raise AssertionError("processes were started")

    def by(*words: str, model: str = MODEL) -> str:
        for name in ("RANK", "WORLD_SIZE"):  # OneFlow, when it is imported, sets them
            monkeypatch.delenv(name, raising=False)
        done = CliRunner().invoke(main, ("train", model, "--cluster", LAPTOP, *words))
        assert done.exit_code == 2, done.output
        assert done.stdout == "" and "Traceback" not in done.stderr
        return done.stderr

    monkeypatch.setattr(job, "run_processes", started)
    return by


def plan(*words: str) -> None:
    done = CliRunner().invoke(main, ("plan", MODEL, *words))
    assert done.exit_code == 0, done.output


def test_two_processes_train_like_one(alone, tmp_path):
    trace = tmp_path / "trace.json"
    together = train("--nodes", "1", "--steps", "3", "--profile", str(trace))
    assert together.returncode == 0, together.stdout + together.stderr
    assert losses(together.stdout) == pytest.approx(alone, rel=1e-4)
    assert "estimates in laptop" in together.stdout
    assert "rows of the batch a second" in together.stdout
    assert "libibverbs" not in together.stdout + together.stderr
    assert "starting 2 processes" in together.stderr
    assert f"written: {trace}" in together.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    assert {e["pid"] for e in events} == set(range(3)), "the plan and two ranks"


@pytest.mark.full
def test_a_pipeline_is_planned_and_trained_like_one_process(alone):
    staged = train("--stages", "2", "--schedule", "eager-1f1b", "--steps", "2")
    assert staged.returncode == 0, staged.stdout + staged.stderr
    assert losses(staged.stdout) == pytest.approx(alone[:2], rel=1e-4)


def test_a_plan_has_its_own_stages(refused):
    assert "leave it or --plan out" in refused("--plan", "plan.json", "--stages", "2")


def test_many_processes_are_started_only_if_somebody_wants_them(refused):
    cores = len(os.sched_getaffinity(0))
    many = str(2 * cores + 1)  # hosts of two
    said = refused("--nodes", many)
    assert f"{4 * cores + 2} processes on {cores} core" in said and "give --yes" in said
    for words in (("--nodes", many, "--yes"), ("--nodes", str(2 * cores))):
        assert "--yes" not in refused(*words, "--plan", "missing.json")


@pytest.mark.parametrize(
    ("answer", "text"),
    [("n", "Aborted!"), pytest.param("y", "missing.json", marks=pytest.mark.full)],
)
def test_on_a_terminal_it_asks(answer, text):
    many = str(2 * len(os.sched_getaffinity(0)) + 1)
    words = ("train", MODEL, "--cluster", LAPTOP, "--nodes", many, "--plan", "missing.json")
    command = [sys.executable, "-m", "autoddl", *words]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(command, cwd=ROOT, env=clean, stdin=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    told = b""
    with contextlib.suppress(OSError):  # the end, as a terminal has it
        while piece := os.read(ours, 1000):
            told += piece
    assert asked.wait(60) == (1 if answer == "n" else 2)
    assert "Start " in told.decode() and text in told.decode(), told


@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=pytest.mark.full), 1], ids=["all", "too few"]
)
def test_a_launcher_may_start_the_ranks(processes):
    words = ("-m", "autoddl", "train", MODEL, "--cluster", LAPTOP, "--nodes", "1", "--steps", "2")
    code = (
        "import sys; from autoddl.runtime.jobs.launch import run_processes; "
        "sys.exit(run_processes(sys.argv[2:], int(sys.argv[1])))"
    )
    done = run("-c", code, str(processes), *words)
    if processes == 2:
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(losses(re.sub(r"^\[0\] ", "", done.stdout, flags=re.MULTILINE))) == 2
    else:
        assert done.returncode == 2
        assert "1 x 2 = 2 devices, but this job has 1 process" in done.stdout


def test_what_the_device_cannot_compute_is_refused_before_any_process_starts(refused, tmp_path):
    assert "no kernels on the CPU" in refused("--precision", "float16")
    file = str(tmp_path / "plan.json")
    a100 = "gcp_a100"
    shape = ("--nodes", "1", "--gpus-per-node", "2")
    plan("--cluster", a100, *shape, "--precision", "float16", "-o", file)
    assert "no kernels on the CPU" in refused(*shape, "--plan", file)


def test_a_plan_for_something_else_is_refused_before_any_process_starts(refused, tmp_path):
    file = tmp_path / "plan.json"
    plan("--cluster", LAPTOP, "-o", str(file))
    words = ("--plan", str(file))
    assert "the plan is for 2 x 2 devices" in refused("--nodes", "1", *words)
    assert "the plan is for another model" in refused(*words, model="dlrm_small")
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 99}))
    assert "'version' is 99" in refused(*words)


@pytest.mark.full
def test_a_plan_with_stages_trains_like_one_device(alone, refused, tmp_path):
    """Two stages on two processes; tied weights (GPT's logits) are on both."""
    file = str(tmp_path / "staged.json")
    shape = ("--nodes", "2", "--gpus-per-node", "1")
    plan("--cluster", LAPTOP, *shape, "--stages", "2", "--micro-batches", "4", "-o", file)
    together = train(*shape, "--steps", "2", "--plan", file)
    assert together.returncode == 0, together.stderr
    assert losses(together.stdout) == pytest.approx(alone[:2], rel=1e-5)
    assert "the plan is for 2 x 1 devices" in refused("--plan", file)


@pytest.mark.full
def test_an_operator_without_a_rule_is_told_once(tmp_path: Path):
    (tmp_path / "products.py").write_text(
        "from oneflow import cumprod, int64, nn, randn, zeros\n"
        "class Products(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return cumprod(x, dim=1)\n"
        "def products():\n"
        "    model = nn.Sequential(nn.Linear(4, 4), Products(), nn.Linear(4, 4))\n"
        "    return model, (randn(8, 4), zeros(8, dtype=int64)), nn.CrossEntropyLoss()\n"
    )
    words = ("train", "products:products", "--cluster", LAPTOP, "--nodes", "1", "--steps", "1")
    done = run("-m", "autoddl", *words, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "cumprod" in line]
    assert len(told) == 1 and told[0].startswith("Warning: 1 runs as one replicated operator")


def test_restarts_need_a_folder_to_go_on_from(refused):
    assert "need --checkpoint" in refused("--max-restarts", "1")


@pytest.mark.full
def test_a_killed_job_goes_on_with_fewer_devices(tmp_path):
    """On four devices, then, as the machine file says so, on three: no step is left out."""
    folder, machine = tmp_path / "checkpoints", tmp_path / "machine.json"
    whole = Cluster.load(LAPTOP)
    whole.with_shape(1, 4).save(machine)
    words = ["train", MODEL, "--cluster", str(machine), "--steps", "14"]
    alone = run("-m", "autoddl", *words[:2], "--cluster", LAPTOP, "--nodes", "1",
                "--gpus-per-node", "1", "--steps", "14")  # fmt: skip
    command = [*words, "--checkpoint", str(folder), "--every", "4", "--max-restarts", "2"]
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    started = subprocess.Popen(
        [sys.executable, "-m", "autoddl", *command], cwd=ROOT, env=clean, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert started.stdout is not None
    text = ""
    for line in started.stdout:
        text += line
        if line.startswith("step   6"):
            whole.with_shape(1, 3).save(machine)
            os.kill(next(rank for rank in ranks_of(started.pid)), signal.SIGKILL)
            break
    text += started.stdout.read()
    assert started.wait() == 0, text
    assert "planned anew for" in text and "goes on after step 4" in text
    expected = dict(enumerate(losses(alone.stdout), start=1))
    found = re.findall(r"^step +(\d+)  loss (\S+)", text, re.MULTILINE)
    assert [int(step) for step, _ in found if int(step) > 4][-10:] == list(range(5, 15)), text
    for step, loss in found:
        assert float(loss) == pytest.approx(expected[int(step)], rel=1e-4), step


def ranks_of(launcher: int) -> list[int]:
    """The processes of a job's ranks, which have the launcher's process as their parent."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == launcher and b"autoddl" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found
