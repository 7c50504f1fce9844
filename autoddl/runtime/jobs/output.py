"""What the processes of a job say, in one stream, and which of them it names as the cause.

Companions (`companion.py`) know which rank has ended first and where it was, the launcher how each
of its own ended. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
from collections.abc import Collection, Mapping
from typing import IO

# OneFlow says so at its start on every machine without InfiniBand, whatever its log's level
NO_NEWS = "libibverbs not available, ibv_fork_init skipped"
# what `guard.py` and `verdict.py` say
ENDS_THE_JOB = "ends the job"
_WITHOUT_A_WORD = "ended without a word"
# how glog begins what a framework says when it aborts, as it does when it loses another rank
_ABORTS = re.compile(r"F\d{8} \d\d:\d\d:\d\d")
# and what OneFlow says when it aborts because it has lost one
_LOST = re.compile(r"F\d{8} \S+ +\d+ io_event_poller\.cpp")
_CAUSE = re.compile(rf"rank (\d+) of .*{ENDS_THE_JOB}")
_COMPANIONS_WORD = re.compile(rf"rank (\d+) of (\d+).*{_WITHOUT_A_WORD}.*")


class Output:
    """Copies the lines of several processes to one stream, whole lines, and all but `NO_NEWS`.

    What a rank says from when its framework aborts, a line for each of its functions, comes after
    the line that names the cause.

    knows_cause: a line has said which rank ends the job
    how:         ranks that have ended, and how: companions know where, but not that
    lost:        ranks that aborted as they had lost another one, which was the first then, though
                 both may end within a few milliseconds
    """

    def __init__(self, stream: IO[str]) -> None:
        self.knows_cause = False
        self.how: Mapping[int, str] = {}
        self.lost: set[int] = set()
        self._stream = stream
        self._lock = threading.Lock()
        self._kept: list[str] = []
        self._causes: set[str] = set()  # ranks

    def follow(self, process: subprocess.Popen[str], rank: int, head: str) -> threading.Thread:
        """Start a thread that copies the lines of a rank's `process`, each after `head`."""
        reader = threading.Thread(target=self._copy, args=(process, rank, head), daemon=True)
        reader.start()
        return reader

    def _copy(self, process: subprocess.Popen[str], rank: int, head: str) -> None:
        assert process.stdout is not None
        aborts = False
        with process.stdout as lines:
            for line in lines:
                if line.rstrip("\n") != NO_NEWS:
                    aborts = aborts or _ABORTS.match(line) is not None
                    if _LOST.match(line):
                        self.lost.add(rank)
                    self.write(head + line.rstrip("\n"), may_wait=aborts)

    def write(self, line: str, may_wait: bool = False) -> None:
        with self._lock, contextlib.suppress(ValueError, OSError):
            if may_wait and not self.knows_cause and ENDS_THE_JOB not in line:
                self._kept.append(line)
                return
            if found := _COMPANIONS_WORD.search(line):
                if self.knows_cause:
                    return
                line = line[: found.start()] + self._with_how(found)
            if said := _CAUSE.search(line):
                if said[1] in self._causes:
                    return  # a companion on each host says it
                self._causes.add(said[1])
            self.knows_cause = self.knows_cause or ENDS_THE_JOB in line
            self._stream.write(line + "\n")
            if self.knows_cause:
                self._let_go()
            self._stream.flush()

    def _with_how(self, word: re.Match[str]) -> str:
        """What a companion says of a rank's end, with how, or the rank that it had lost before."""
        rank, size = int(word[1]), word[2]
        others = self.how.keys() - self.lost
        if rank in self.lost and others:
            first = min(others)
            return (
                f"rank {first} of {size} {self.how[first]} and {ENDS_THE_JOB}: rank {rank} lost "
                "its connection to it"
            )
        return word[0].replace(_WITHOUT_A_WORD, self.how.get(rank, _WITHOUT_A_WORD))

    def close(self) -> None:
        """Nothing more comes."""
        with self._lock, contextlib.suppress(ValueError, OSError):
            self._let_go()
            self._stream.flush()

    def _let_go(self) -> None:
        kept, self._kept = self._kept, []
        self._stream.writelines(f"{line}\n" for line in kept)


def how_each_ended(codes: Mapping[int, int | None], lost: Collection[int]) -> dict[int, str]:
    """In what way each rank ended whose status is not 0; some because they had `lost` another."""
    failed = [rank for rank, code in codes.items() if code]
    hows = {}
    for rank in failed:
        code = codes[rank]
        assert code is not None
        if code > 0:
            hows[rank] = f"ended with status {code}"
            continue
        hows[rank] = f"was killed by {signal.Signals(-code).name}"
        explained = () if rank in lost else lost
        others = ", ".join(str(n) for n in failed if n != rank and n not in explained)
        if others and all(codes[one] == -signal.SIGABRT for one in failed):
            # as OneFlow does to itself where a connection is reset
            hows[rank] += (
                f" (as was rank {others}: it failed, or a connection between them was lost)"
            )
    return hows
