"""`make demo`: plan two models for 2 hosts x 2 devices, train them so, compare with one process.

The hosts and devices are four processes on this machine. Each model is trained twice on the same
data, from the same parameters: by the four, as planned, and by one with plain OneFlow; or, with
`make demo-torch`, `python -m examples.demo torch_tasks`, in eager PyTorch.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import autoddl
from autoddl.plans.report import report
from autoddl.runtime.jobs.launch import run_processes
from autoddl.tools.show import show as show_report

SHOWN = 3  # every so many steps
LAPTOP = "laptop"


def losses_of(
    tasks: str, name: str, processes: int, folder: Path, plan: autoddl.Plan | None
) -> list[float]:
    """Train the task `name` in `processes` processes; RuntimeError if they fail."""
    losses = folder / f"{name}-{processes}.json"
    words = ["-m", tasks, name, str(losses)]
    if plan is not None:
        plan.save(folder / f"{name}-plan.json")
        words.append(str(folder / f"{name}-plan.json"))
    said = io.StringIO()
    status = run_processes(words, processes, output=said)
    if status:
        print(said.getvalue(), file=sys.stderr)
        raise RuntimeError(f"training {name} in {processes} processes ended with status {status}")
    return json.loads(losses.read_text())


def curves(alone: list[float], together: list[float]) -> Table:
    """Both loss curves side by side, at the first step and every `SHOWN`."""
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "one process", "four processes", "difference"):
        table.add_column(heading, justify="right")
    for step, (a, b) in enumerate(zip(alone, together, strict=True), start=1):
        if step == 1 or step % SHOWN == 0:
            table.add_row(str(step), f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}")
    return table


def largest_difference(alone: list[float], together: list[float]) -> float:
    """The largest difference of two losses, relative to the first."""
    return max(abs(b - a) / abs(a) for a, b in zip(alone, together, strict=True))


def show(tasks: Any, name: str, folder: Path) -> None:
    """Plan, train and compare one task of the module `tasks`."""
    out, task = Console(highlight=False), tasks.TASKS[name]
    out.rule(f"[bold]{task.title}", align="left")
    model, example, loss = task.build()
    graph = autoddl.trace(model, *example, loss=loss)
    plan = autoddl.plan(graph, autoddl.Cluster.load(LAPTOP))
    show_report(report(plan), brief=True)
    out.print(f"training {tasks.STEPS} steps in one process, then in {plan.cluster.num_devices}")
    alone = losses_of(tasks.__name__, name, 1, folder, None)
    together = losses_of(tasks.__name__, name, plan.cluster.num_devices, folder, plan)
    out.print(curves(alone, together))
    out.print(f"largest relative difference: {largest_difference(alone, together):.1e}\n")


def main(name: str = "tasks") -> None:
    started, tasks = time.perf_counter(), import_module(f"{__package__}.{name}")
    with tempfile.TemporaryDirectory(prefix="autoddl-demo-") as folder:
        for task in tasks.TASKS:
            show(tasks, task, Path(folder))
    Console(highlight=False).print(f"done in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
