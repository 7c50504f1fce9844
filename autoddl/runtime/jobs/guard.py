"""Ends the job when a rank fails, so that it does not leave the other ranks waiting for it.

When a rank fails, Python's normal exit waits for the other ranks, which wait for it, for hours.
With the guard installed, a rank that ends with an exception, or through `sys.exit` with a status
other than zero, reports it and exits at once; the framework's heartbeat or the launcher then ends
the others within seconds. This module needs the standard library only, so that it can be installed
before the framework is imported.

OneFlow's own launcher, when interrupted, ends its ranks only if it leads its process group, as a
shell's job does; with the guard they end with it in any case.

A rank that ends normally while others continue is handled by `roll_call.py`; one that ends without
a word, hangs or cannot be reached by its companion (`companion.py`), which the guard starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from . import companion
from .journal import Journal

LIMIT_SECONDS = 60.0  # without progress, of `_LIMIT`
_LIMIT = "AUTODDL_TIMEOUT"
_WATCHED = "AUTODDL_WATCHED"  # the process that is a rank: what it starts has its environment
_JOURNAL = "AUTODDL_JOURNAL"  # a descriptor, of a rank that was watched before it was a script
_PR_SET_PDEATHSIG = 1
# what frameworks raise in a rank whose peer has ended: gloo, NCCL, and Python's own
_LOST = re.compile("(closed|reset) by peer|remote process exited|ncclRemoteError|Broken pipe")
LOST_SECONDS = 2.0  # for the companions to end the job first
_OTHER_LAUNCHER = "oneflow.distributed.launch"


def world_size() -> int:
    """Number of processes of the job, from the launcher's environment; 1 without a launcher."""
    return _number("WORLD_SIZE", 1, 1)


def rank() -> int:
    """This process's place in the job, from the launcher's environment; 0 without a launcher."""
    # importing OneFlow without a launcher sets it to -1
    return max(0, _number("RANK", 0, -1, world_size() - 1))


def _number(name: str, default: int, least: int, most: int = 1 << 31) -> int:
    """What a launcher has put into the environment. ValueError if it is no such number."""
    text = os.environ.get(name, "") or str(default)
    if not re.fullmatch(r"-?\d{1,10}", text) or not least <= int(text) <= most:
        at_most = f" to {most}" if most < 1 << 31 else ""
        raise ValueError(f"{name} in the environment is from {least}{at_most}, got {text!r}")
    return int(text)


class Guard:
    """What `install_guard` has installed in this process."""

    def __init__(self) -> None:
        self.exit_status: int | str | None = None
        self.journal: Journal | None = None
        self._descriptor = -1  # of the journal's memory
        self._show_error = sys.excepthook
        self._exit = sys.exit

    def install(self) -> None:
        sys.excepthook = self._on_error
        sys.exit = self._on_exit
        atexit.register(self.at_exit)

    def _on_error(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AttributeError):
            try:
                sys.stderr.fileno()
            except ValueError:  # torch's hook, which calls this one, shows what it has seen later
                sys.stderr = sys.__stderr__
        reason = f"{kind.__name__}: {error}"
        if self.journal is not None and _LOST.search(reason):
            time.sleep(LOST_SECONDS)  # another rank is the cause: the companions name it
        announce(reason)
        self._show_error(kind, error, trace)
        end(reason)

    def _on_exit(self, status: int | str | None = None, /) -> NoReturn:
        # remembered, since nothing says at exit what the status is
        self.exit_status = status
        self._exit(status)

    def leave_if_failed(self) -> None:
        """At exit: end at once if `sys.exit` was called with a status other than zero."""
        status = self.exit_status
        if status not in (None, 0):
            leave(f"sys.exit({status!r})", status if isinstance(status, int) else 1)

    def at_exit(self) -> None:
        """At exit, after everything that was registered later."""
        self.leave_if_failed()
        if self.journal is not None:
            self.journal.end()

    def start_companion(self) -> None:
        """Unless the user wants none, or this process is something that a rank has started."""
        limit_s, me = stall_limit_s(), str(os.getpid())
        rank()
        for port in "MASTER_PORT", "AUTODDL_WATCH_PORT":
            _number(port, 1, 1, 65535)
        os.environ[_WATCHED] = os.environ.get(_WATCHED) or me
        known = os.environ.pop(_JOURNAL, "")
        if limit_s > 0 and os.environ[_WATCHED] == me:
            self._descriptor = int(known) if known else os.memfd_create("autoddl-journal")
            os.set_inheritable(self._descriptor, False)
            self.journal = Journal(self._descriptor)
            self.journal.guard(True)
            if not known:
                companion.start(self._descriptor, limit_s)

    def hand_on(self) -> None:
        """What this process becomes is watched by its companion, and not guarded yet."""
        if self.journal is not None:
            self.journal.guard(False)
            os.set_inheritable(self._descriptor, True)
            os.environ[_JOURNAL] = str(self._descriptor)


_guard: Guard | None = None


def install_guard() -> None:
    """Guard this process if it is one rank of several. Repeated calls install once."""
    global _guard  # hooks of the process are global by nature
    if world_size() > 1:
        _let_the_kernel_interrupt()
    if _guard is None and world_size() > 1:
        _guard = Guard()
        _guard.install()
        _guard.start_companion()
        if _OTHER_LAUNCHER in _command_of(os.getppid()):
            _tie_to_parent()


def watched(command: Sequence[str]) -> list[str]:
    """A command that becomes `command`: a rank that ends with this process, and is watched.

    The watch begins before anything else runs there, so that scripts may import OneFlow first. Of a
    launcher that is killed, which cannot end its ranks, the kernel does so.
    """
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import _be_rank; _be_rank()"
    return [sys.executable, "-I", "-S", "-c", code, str(os.getpid()), *command]


def _be_rank() -> NoReturn:
    parent, *command = sys.argv[1:]
    _tie_to_parent()
    if os.getppid() != int(parent):  # it has ended already
        os._exit(1)
    become(command)


def become(command: Sequence[str]) -> NoReturn:
    """This process becomes `command`, and stays watched."""
    install_guard()
    if _guard is not None:
        _guard.hand_on()
    os.execvp(command[0], list(command))


def _tie_to_parent() -> None:
    """From now on this process is killed when its parent ends (prctl(2)), on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _let_the_kernel_interrupt() -> None:
    """OneFlow, once imported, has a handler of SIGINT, of which Python does not know.

    It runs what is registered for the process's end in the middle of whatever the process does,
    which gives status 255, an abort or a segmentation fault, and the rank has ended without a
    reason. A handler that the user has set, or that Python has where there is no OneFlow, stays,
    and a shell's job in the background goes on ignoring it.
    """
    known = signal.getsignal(signal.SIGINT)
    if "oneflow" in sys.modules and known in (signal.default_int_handler, signal.SIG_IGN):
        ignores = known == signal.SIG_IGN
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGINT, signal.SIG_IGN if ignores else signal.SIG_DFL)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:  # it has ended, or there is no /proc
        return ""


def leave_if_failed() -> None:
    """At exit: end this process at once if it fails, otherwise return."""
    if _guard is not None:
        _guard.leave_if_failed()


def stall_limit_s() -> float:
    """How long the job may be without progress. ValueError unless AUTODDL_TIMEOUT is a number."""
    text = os.environ.get(_LIMIT, "") or str(LIMIT_SECONDS)
    with contextlib.suppress(ValueError):
        if 0 <= (limit_s := float(text)) < math.inf:
            return limit_s
    raise ValueError(f"{_LIMIT} is a number of seconds, 0 for no limit, got {text!r}")


@contextlib.contextmanager
def inside(call: str) -> Iterator[None]:
    """This rank is in a call that all ranks make together. Also a decorator."""
    journal = _guard and _guard.journal
    with journal.inside(call) if journal else contextlib.nullcontext():
        yield


def note_collective(kind: str, ranks: tuple[int, ...], first: int, why: str = "") -> None:
    """This rank asks for one, of the job's ranks from `first`."""
    if _guard is not None and _guard.journal is not None:
        _guard.journal.collective(_label(kind, ranks, first, why))


@functools.cache
def _label(kind: str, ranks: tuple[int, ...], first: int, why: str) -> str:
    shown = ", ".join(str(first + rank) for rank in ranks[:8])
    of = f"{kind} of ranks {shown}{', ...' if len(ranks) > 8 else ''}"
    return f"{of} for {why}" if why else of


def be_patient(seconds: float) -> None:
    """A step may take so long."""
    if _guard is not None and _guard.journal is not None:
        _guard.journal.be_patient(seconds)


def expect_link(bytes_per_s: float) -> None:
    """The plan counts on links between hosts that carry so much."""
    if _guard is not None and _guard.journal is not None:
        _guard.journal.expect_link(bytes_per_s)


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """What is inside may take so long, on all ranks, without a collective."""
    journal = _guard and _guard.journal
    before = journal.patience_s if journal else 0.0
    be_patient(max(before, seconds))
    try:
        yield
    finally:
        be_patient(before)


def announce(reason: str) -> None:
    """Say that this rank ends the job, and why, in one line."""
    first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    place = f"rank {rank()} of {world_size()} on {socket.gethostname()}"
    sys.stdout.flush()
    sys.stderr.write(f"{place} failed and ends the job: {first_line}\n")
    sys.stderr.flush()


def end(reason: str, status: int = 1) -> NoReturn:
    """End this process at once, without waiting for other ranks."""
    if _guard is not None and _guard.journal is not None:
        _guard.journal.end(reason or "no reason given")
    sys.stderr.flush()
    os._exit(status & 0xFF or 1)


def leave(reason: str, status: int = 1) -> NoReturn:
    """Say why this rank ends the job, and `end` it."""
    announce(reason)
    end(reason, status)
