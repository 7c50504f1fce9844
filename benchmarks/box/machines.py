"""The machine file of a box, measured by `autoddl calibrate` inside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from autoddl.box import Box
from autoddl.cluster import Cluster

from .results import FOLDER
from .work import ENV


def calibrated(box: Box, rate: str, again: bool, options: Sequence[str]) -> Cluster:
    """The file of a box of this shape at this rate; measured if it is missing or `again`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    nodes, gpus = box.spec.nodes, box.spec.gpus_per_node
    path = FOLDER / f"machine_{nodes}x{gpus}_{rate}.json"
    if again or not path.exists():
        for old in FOLDER.glob(f"{path.stem}.*"):
            old.unlink()
        sizes = ["--nodes", str(nodes), "--gpus-per-node", str(gpus), "--name", f"box at {rate}"]
        command = ["-m", "autoddl", "calibrate", "--output", str(path), *sizes, *options]
        status = box.run(command, ENV, output=sys.stdout, prefix=False)
        if status:
            raise RuntimeError(f"autoddl calibrate ended with status {status}")
    return Cluster.load(path)
