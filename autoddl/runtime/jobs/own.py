"""What is known of a rank without its help: by the kernel, and by the journal that it writes.

Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import asdict

from .journal import Journal
from .links import Peers, peers_of
from .verdict import Rank

# between two looks at its connections (0.5 ms of CPU) and, until it trains, its libraries (2 ms)
LOOK_SECONDS = 1.9


class Own:
    """The rank that a companion belongs to."""

    def __init__(self, pid: int, process: int, journal: Journal) -> None:
        self.pid = pid
        self.process = process
        self._journal = journal
        self._place = int(os.environ["RANK"]), socket.gethostname()
        self._peers: Peers = {}
        self._looked = 0.0
        self._has_loaded = False
        self.address = "127.0.0.1"  # until it is connected
        self.is_dead = self.is_told = False

    def look(self) -> Rank:
        """What it does now."""
        done = self._journal.read()
        try:
            with open(f"/proc/{self.pid}/task/{self.pid}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            state, ticks = words[0], int(words[11]) + int(words[12])
        except OSError:
            state, ticks = "X", 0
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._peers, self._looked = peers_of(self.pid), time.monotonic()
            if not (self._has_loaded or done.calls):
                self._has_loaded = _has_loaded(self.pid)
        is_dead = self.is_dead or state in "ZX"
        return Rank(
            *self._place, self.address, self._peers, state, ticks, is_dead, self._has_loaded,
            **asdict(done), is_told=self.is_told,
        )  # fmt: skip

    def record(self) -> list[tuple[float, str]]:
        """What it did last (`Journal.record`)."""
        return self._journal.record()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)


def _has_loaded(pid: int) -> bool:
    """Whether a process has loaded OneFlow."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        return b"/_oneflow_internal" in maps.read()
    return False
