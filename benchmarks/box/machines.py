"""The machine file of a box, measured by `autoddl calibrate` inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autoddl.cluster import Cluster
from autoddl.runtime.measure.operators import tasks_of
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box

from .results import FOLDER
from .work import ENV


def calibrated(
    box: Box, rate: str, again: bool, options: Sequence[str], overlaps: bool = False
) -> Cluster:
    """The file of a box of this shape at this rate; measured if it is missing or `again`.

    overlaps: of `run_processes`, as in the steps that are priced with it
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = _path(box, rate)
    if again or not path.exists():
        for old in FOLDER.glob(f"{path.stem}.*"):
            old.unlink()
        _calibrate(box, rate, options, overlaps)
    return Cluster.load(path)


def calibrated_for(
    box: Box, rate: str, again: bool, options: Sequence[str], model: str, overlaps: bool = False
) -> Cluster:
    """As `calibrated`, with the operators of `model` timed by themselves."""
    cluster = calibrated(box, rate, again, options, overlaps)
    graph = trace_entry(model)
    if any(task.key not in cluster.device.operators for task in tasks_of(graph, box.spec.size)):
        _calibrate(box, rate, [*options, "--model", model], overlaps)
        cluster = Cluster.load(_path(box, rate))
    return cluster


def _path(box: Box, rate: str) -> Path:
    return FOLDER / f"machine_{box.spec.nodes}x{box.spec.gpus_per_node}_{rate}.json"


def _calibrate(box: Box, rate: str, options: Sequence[str], overlaps: bool) -> None:
    nodes, gpus = box.spec.nodes, box.spec.gpus_per_node
    sizes = ["--nodes", str(nodes), "--gpus-per-node", str(gpus), "--name", f"box at {rate}"]
    output = os.path.relpath(_path(box, rate))  # it is told in the file
    command = ["-m", "autoddl", "calibrate", "--output", output, *sizes, *options]
    status = box.run(command, ENV, output=sys.stdout, prefix=False, overlaps=overlaps)
    if status:
        raise RuntimeError(f"autoddl calibrate ended with status {status}")
