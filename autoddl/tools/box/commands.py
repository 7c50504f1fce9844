"""The system's own tools, `ip` and `tc`, and what a box needs before it can use them."""

from __future__ import annotations

import os
import shutil
import subprocess

TOOLS = {"ip": "iproute2", "tc": "iproute2"}


def check_possible() -> None:
    """ValueError that says what is missing, unless this process can make network namespaces."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        packages = ", ".join(sorted({TOOLS[tool] for tool in missing}))
        raise ValueError(
            f"a box needs the command{'s' if len(missing) > 1 else ''} {' and '.join(missing)}, "
            f"which this machine does not have; install {packages}"
        )
    if os.geteuid() != 0:
        raise ValueError(
            "a box needs root: it makes network namespaces and shapes the links between them "
            "(nothing outside of its own namespaces is changed); run the command with sudo, or as "
            "root in a container with the capabilities NET_ADMIN and SYS_ADMIN"
        )


def run(*words: str, check: bool = True) -> str:
    """What a command prints. ValueError with its message if it fails and `check`."""
    # in a session of its own: Ctrl-C is for us, who take the box down, not for half of it
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if check and done.returncode != 0:
        raise ValueError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def batch(tool: str, namespace: str, *lines: str) -> None:
    """Run `lines` of `ip` or `tc` commands in a namespace, as one process."""
    done = subprocess.run(
        [tool, "-n", namespace, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode != 0:
        raise ValueError(f"{tool} -n {namespace}: {done.stderr.strip()} (of: {'; '.join(lines)})")
