"""Ends the job when a rank fails, so that it does not leave the other ranks waiting for it.

When a rank fails, Python's normal exit waits for the other ranks, which wait for it, for hours.
With the guard installed, a rank that ends with an exception, or through `sys.exit` with a status
other than zero, reports it and exits at once; the framework's heartbeat or the launcher then ends
the others within seconds. This module needs the standard library only, so that it can be installed
before the framework is imported.

OneFlow's own launcher, when interrupted, ends its ranks only if it leads its process group, as a
shell's job does; with the guard they end with it in any case.

A rank that ends normally while others continue is handled by `roll_call.py`.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from .leash import tie_to_parent

_OTHER_LAUNCHER = "oneflow.distributed.launch"


def world_size() -> int:
    """Number of processes of the job, from the launcher's environment; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's place in the job, from the launcher's environment; 0 without a launcher."""
    # importing OneFlow without a launcher sets it to -1
    return max(0, int(os.environ.get("RANK", "0")))


class Guard:
    """What `install_guard` has installed in this process."""

    def __init__(self) -> None:
        self.exit_status: int | str | None = None
        self._show_error = sys.excepthook
        self._exit = sys.exit

    def install(self) -> None:
        sys.excepthook = self._on_error
        sys.exit = self._on_exit
        atexit.register(self.leave_if_failed)

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._show_error(kind, error, trace)
        leave(f"{kind.__name__}: {error}")

    def _on_exit(self, status: int | str | None = None, /) -> NoReturn:
        # remembered, since nothing says at exit what the status is
        self.exit_status = status
        self._exit(status)

    def leave_if_failed(self) -> None:
        """At exit: end at once if `sys.exit` was called with a status other than zero."""
        status = self.exit_status
        if status not in (None, 0):
            leave(f"sys.exit({status!r})", status if isinstance(status, int) else 1)


_guard: Guard | None = None


def install_guard() -> None:
    """Guard this process if it is one rank of several. Repeated calls install once."""
    global _guard  # hooks of the process are global by nature
    if _guard is None and world_size() > 1:
        _guard = Guard()
        _guard.install()
        if _OTHER_LAUNCHER in _command_of(os.getppid()):
            tie_to_parent()


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended, or there is no /proc
        return ""


def leave_if_failed() -> None:
    """At exit: end this process at once if it fails, otherwise return."""
    if _guard is not None:
        _guard.leave_if_failed()


def leave(reason: str, status: int = 1) -> NoReturn:
    """End this process at once, without waiting for other ranks."""
    first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    sys.stdout.flush()
    sys.stderr.write(f"rank {rank()} of {world_size()} failed and ends the job: {first_line}\n")
    sys.stderr.flush()
    os._exit(status & 0xFF or 1)
