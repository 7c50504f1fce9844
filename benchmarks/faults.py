"""Faults put into training jobs: each must end the job in time, with its cause named.

    python -m benchmarks.faults [--every N] [--limit SECONDS]

A fault is a kind, on one rank of four, at the start, in step 1 or later, on one mesh or in stages,
as four processes of one machine or in the box (two hosts of two, with links; needs root). Writes
benchmarks/results/faults.md. The exit status is that of the worst fault.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoddl.runtime.jobs.launch import run_processes
from autoddl.tools.box.box import Box

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "faults.md"
STEPS = 6
RANKS = 4
SIGNALS = {
    "SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGINT": signal.SIGINT,
    "SIGTERM": signal.SIGTERM, "SIGABRT": signal.SIGABRT, "SIGSEGV": signal.SIGSEGV,
}  # fmt: skip
KINDS = ("raise", "sleep", "_exit(0)", "_exit(5)", "sys.exit(3)", "nan", "batch", *SIGNALS)
WHEN = ("start", "step 1", "step 4")
MESHES = ("1x4", "2x2", "2x2 in stages", "box 2x2")
_MARK = "fault at"
SLACK_SECONDS = 5.0  # above the limit: the companions' ticks, and how processes are ended


@dataclass(frozen=True)
class Fault:
    kind: str
    rank: int
    when: str
    mesh: str

    @property
    def is_possible(self) -> bool:
        """Before training there are no numbers."""
        return self.kind not in ("nan", "batch") or self.when == "step 1"

    @property
    def words(self) -> list[str]:
        return [str(Path(__file__)), "--worker", self.kind, str(self.rank), self.when, self.mesh]


@dataclass(frozen=True)
class Ended:
    """How a job ended: seconds after the fault, its status, and the first line with a cause."""

    fault: Fault
    seconds: float
    status: int
    line: str
    left: int

    @property
    def is_named(self) -> bool:
        """All ranks see a number that is none, and a batch that differs."""
        if self.fault.kind in ("nan", "batch"):
            return "ends the job" in self.line
        return f"rank {self.fault.rank} of {RANKS}" in self.line


def faults() -> Iterator[Fault]:
    """All of them, the rank going round."""
    ranks = itertools.cycle((1, 3, 0, 2))
    for when, kind, mesh in itertools.product(WHEN, KINDS, MESHES):
        fault = Fault(kind, next(ranks), when, mesh)
        if fault.is_possible:
            yield fault


def run(fault: Fault, limit_s: float, box: Box | None) -> Ended:
    out = io.StringIO()
    env = {"AUTODDL_TIMEOUT": str(limit_s), "PYTHONPATH": str(ROOT), "GLOG_minloglevel": "3"}
    timeout, overlaps = limit_s + 120, "stages" in fault.mesh
    if box is None:
        status = run_processes(
            fault.words, RANKS, env, output=out, timeout=timeout, overlaps=overlaps
        )
    else:
        status = box.run(fault.words, env, output=out, timeout=timeout)
    text, now = out.getvalue(), time.time()
    at = re.findall(rf"{_MARK} ([\d.]+)", text)
    causes = [line for line in text.splitlines() if "ends the job" in line]
    line = re.sub(r"^\[\d+\] ", "", causes[0]) if causes else "nothing"
    seconds = now - float(at[0]) if at else float("nan")
    return Ended(fault, seconds, status, line, _left())


def _left() -> int:
    """Workers and companions that still run."""
    time.sleep(0.5)
    every = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return sum(f"{__file__} --worker" in line for line in every.splitlines())


def worker(kind: str, bad: int, when: str, mesh: str) -> None:
    """A rank; OneFlow comes first, as in most scripts."""
    import oneflow as flow

    import autoddl

    nn, is_bad = flow.nn, os.environ["RANK"] == str(bad)
    if is_bad and when == "start":
        fail(kind)
        raise AssertionError("it has not failed")
    flow.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    x, y = flow.randn(8, 8), flow.randn(8, 8)
    shape = (1, 4) if mesh == "1x4" else (2, 2)
    trainer = autoddl.parallelize(
        model,
        autoddl.Cluster.load("laptop").with_shape(*shape),
        example=(x, y),
        loss=nn.MSELoss(),
        optimizer=lambda p: flow.optim.SGD(p, lr=0.1),
        stages=2 if "stages" in mesh else None,
    )
    for step in range(STEPS):
        given = x
        # batches are compared in the first step, and in every fiftieth
        if is_bad and step == (0 if kind == "batch" else int(when[-1])):
            if kind in ("nan", "batch"):
                announce()
                given = x * float("nan") if kind == "nan" else x + 1.0
            else:
                fail(kind)
        float(trainer.step(given, y))


def announce() -> None:
    print(f"{_MARK} {time.time()}", flush=True)


def fail(kind: str) -> None:
    announce()
    if kind == "raise":
        raise RuntimeError("a fault")
    if kind == "sleep":
        time.sleep(3600)
    elif kind == "sys.exit(3)":
        sys.exit(3)
    elif kind.startswith("_exit"):
        os._exit(int(kind[6]))
    else:
        os.kill(os.getpid(), SIGNALS[kind])
        time.sleep(3600)  # a handler may need time


def table(ended: list[Ended], limit_s: float) -> str:
    most = limit_s + SLACK_SECONDS
    good = [one for one in ended if one.status not in (0, 124) and one.seconds <= most]
    named = [one for one in ended if one.is_named]
    lines = [
        "# Faults in training jobs",
        "",
        f"`make bench-faults`: {len(ended)} faults with a limit of {limit_s:g} s without progress. "
        f"{len(good)} ended within {most:g} s with a status that is not 0, {len(named)} with the "
        f"right rank in the first line that names a cause; "
        f"{sum(one.left for one in ended)} processes were left.",
        "",
        "| fault | rank | when | mesh | seconds | status | first cause |",
        "| --- | --- | --- | --- | ---: | ---: | --- |",
    ]
    for one in ended:
        fault = one.fault
        line = one.line.replace("|", "/")[:160]
        lines.append(
            f"| {fault.kind} | {fault.rank} | {fault.when} | {fault.mesh} | {one.seconds:.1f} | "
            f"{one.status} | {line} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="of the faults only each Nth")
    parser.add_argument("--limit", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after them")
    asked = parser.parse_args()
    began, ended = time.monotonic(), list[Ended]()
    with contextlib.ExitStack() as stack:
        for fault in itertools.islice(faults(), 0, None, asked.every):
            if time.monotonic() - began > asked.seconds:
                break
            box = stack.enter_context(_box(fault))
            ended.append(one := run(fault, asked.limit, box))
            stack.close()
            print(f"{one.seconds:6.1f} s  {one.status:4d}  {fault}  {one.line[:200]}", flush=True)
            RESULTS.write_text(table(ended, asked.limit))
    return 0 if all(one.is_named and one.status not in (0, 124) for one in ended) else 1


@contextlib.contextmanager
def _box(fault: Fault) -> Iterator[Box | None]:
    """Where the fault's job runs, if not on this machine itself."""
    if not fault.mesh.startswith("box"):
        yield None
        return
    with Box(2, 2, "1gbit") as box:
        yield box


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        kind, rank, when, mesh = sys.argv[2:]
        worker(kind, int(rank), when, mesh)
    else:
        sys.exit(main())
