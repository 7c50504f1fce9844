"""Runs the workers in a box and brings their readings together: per case, one reading a host."""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoddl.plans import Plan
from autoddl.plans.reshard.plan import ReshardPlan
from autoddl.tools.box import Box

from .meter import load_readings

HERE = Path(__file__).parent
ENV = {"PYTHONPATH": str(HERE.parents[1]), "GLOG_minloglevel": "3"}


def run_steps(
    box: Box,
    shape: Sequence[int],
    steps: Sequence[tuple[str, str]],
    repeats: int,
    shares: Sequence[int] = (),
    measure: str = "bytes",
) -> list[list[dict[str, Any]]]:
    """For each (placement, step) what each host's link carried, or the seconds it took.

    shares: of the mesh
    measure: "bytes" or "seconds"
    """
    work = {"shape": list(shape), "steps": [list(step) for step in steps], "repeats": repeats}
    work |= {"shares": list(shares), "measure": measure}
    with _folder() as folder:
        (folder / "steps.json").write_text(json.dumps(work))
        sizes = [str(box.spec.nodes), str(box.spec.gpus_per_node)]
        _run(box, [str(HERE / "steps_worker.py"), *sizes, str(folder)])
        return load_readings(folder, _first_of_hosts(box))


def run_plans(
    box: Box,
    plans: Sequence[Plan],
    repeats: int,
    worker: str = "plans_worker.py",
    overlaps: bool = False,
    **options: Any,
) -> list[list[dict[str, Any]]]:
    """For each reading of `worker` what each host measured. options: see there.

    overlaps: of `run_processes`
    """
    with _folder() as folder:
        names = [f"plan{number}.json" for number in range(len(plans))]
        for name, plan in zip(names, plans, strict=True):
            plan.save(folder / name)
        work = {"plans": names, "repeats": repeats, **options}
        (folder / "plans.json").write_text(json.dumps(work))
        _run(box, [str(HERE / worker), str(folder)], overlaps)
        return load_readings(folder, _first_of_hosts(box))


def run_reshards(
    box: Box, plans: Sequence[ReshardPlan], repeats: int
) -> list[tuple[list[dict[str, Any]], list[float]]]:
    """For each resharding its bytes, as each host noted them, and the seconds of each repeat."""
    with _folder() as folder:
        (folder / "plans.pickle").write_bytes(pickle.dumps((list(plans), repeats)))
        sizes = [str(box.spec.nodes), str(box.spec.gpus_per_node)]
        _run(box, [str(HERE / "reshard_worker.py"), *sizes, str(folder)])
        readings = load_readings(folder, _first_of_hosts(box))
        count = len(plans)
        seconds = [
            [
                max(host["seconds"][0] for host in readings[at])
                for at in range(n, len(readings), count)
            ]
            for n in range(count, 2 * count)
        ]
        return list(zip(readings[:count], seconds, strict=True))


def run_pipelines(
    box: Box, runs: Sequence[dict[str, Any]], plans: Mapping[str, Plan], repeats: int
) -> list[list[dict[str, Any]]]:
    """For each turn of each run (see pipeline_worker.py) the seconds of a step on each host."""
    with _folder() as folder:
        for name, plan in plans.items():
            plan.save(folder / f"{name}.json")
        work = {"runs": list(runs), "repeats": repeats}
        (folder / "runs.json").write_text(json.dumps(work))
        _run(box, [str(HERE / "pipeline_worker.py"), str(folder)], overlaps=True)
        return load_readings(folder, _first_of_hosts(box))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="autoddl-box-") as name:
        yield Path(name)


def _first_of_hosts(box: Box) -> range:
    return range(0, box.spec.size, box.spec.gpus_per_node)


def _run(box: Box, command: list[str], overlaps: bool = False) -> None:
    status = box.run(command, ENV, output=sys.stderr, overlaps=overlaps)
    if status:
        raise RuntimeError(f"{Path(command[0]).name} ended with status {status}")
