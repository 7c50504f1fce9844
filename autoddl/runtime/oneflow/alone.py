"""Runs OneFlow in a process of its own that is no rank of a job and has no devices.

OneFlow's compiler writes its results to the folder that it logs to, and may end by a crash; all
that the process leaves is therefore read from one folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_RANK_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_ROOT = Path(__file__).parents[3]


def run_alone(worker: str, arguments: Sequence[str], folder: Path, timeout_s: float) -> int:
    """Run the module `worker` in `folder`, and return its exit status.

    Its output goes to the file `output`, OneFlow's logs to the folder `log`. Raises TimeoutExpired.
    """
    with open(folder / "output", "w") as output:
        return subprocess.run(
            [sys.executable, "-m", worker, *arguments], cwd=folder, env=_environment(folder),
            stdout=output, stderr=output, timeout=timeout_s, check=False,
        ).returncode  # fmt: skip


def last_lines(folder: Path, count: int) -> str:
    """The last lines that the process printed, joined; empty lines do not count."""
    lines = (folder / "output").read_text(errors="replace").splitlines()
    return " | ".join([line.strip() for line in lines if line.strip()][-count:])


def _environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in _RANK_VARIABLES}
    paths = [str(_ROOT), kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "GLOG_log_dir": f"{folder}/log",
        "GLOG_minloglevel": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
