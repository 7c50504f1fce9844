"""The machine file of a box, measured by `autoddl calibrate` inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from autoddl.cluster import Cluster
from autoddl.runtime.framework import framework
from autoddl.runtime.measure.operators import tasks_of
from autoddl.tools.box import Box

from .results import FOLDER
from .work import ENV


def calibrated(
    box: Box, rate: str, again: bool, options: Sequence[str], overlaps: bool = False,
    back_end: str = "oneflow",
) -> Cluster:  # fmt: skip
    """The file of a box of this shape at this rate; measured if it is missing or `again`.

    overlaps: of `run_processes`, as in the steps that are priced with it
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = _path(box, rate, back_end)
    if again or not path.exists():
        for old in FOLDER.glob(f"{path.stem}.*"):
            old.unlink()
        _calibrate(box, rate, options, overlaps, back_end)
    return Cluster.load(path)


def calibrated_for(
    box: Box, rate: str, again: bool, options: Sequence[str], model: str, overlaps: bool = False,
    back_end: str = "oneflow",
) -> Cluster:  # fmt: skip
    """As `calibrated`, with the operators of `model` timed by themselves."""
    cluster = calibrated(box, rate, again, options, overlaps, back_end)
    graph = framework(back_end, "calibrated_for").trace_entry(model)
    if any(task.key not in cluster.device.operators for task in tasks_of(graph, box.spec.size)):
        _calibrate(box, rate, [*options, "--model", model], overlaps, back_end)
        cluster = Cluster.load(_path(box, rate, back_end))
    return cluster


def _path(box: Box, rate: str, back_end: str) -> Path:
    shape = f"{box.spec.nodes}x{box.spec.gpus_per_node}"
    of = "" if back_end == "oneflow" else f"{back_end}_"
    return FOLDER / f"machine_{of}{shape}_{rate}.json"


def _calibrate(box: Box, rate: str, options: Sequence[str], overlaps: bool, back_end: str) -> None:
    nodes, gpus = box.spec.nodes, box.spec.gpus_per_node
    sizes = ["--nodes", str(nodes), "--gpus-per-node", str(gpus), "--name", f"box at {rate}"]
    output = os.path.relpath(_path(box, rate, back_end))  # it is told in the file
    command = ["-m", "autoddl", "calibrate", "--output", output, *sizes, *options]
    command += ["--back-end", back_end]
    status = box.run(command, ENV, output=sys.stdout, prefix=False, overlaps=overlaps)
    if status:
        raise RuntimeError(f"autoddl calibrate ended with status {status}")
