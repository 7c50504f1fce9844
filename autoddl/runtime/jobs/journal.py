"""What a rank has done last, in memory that it shares with its companion (`companion.py`).

The companion reads it while the rank waits inside of the framework, is stopped, or has ended. An
entry costs about a microsecond. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

_KEPT = 128  # entries of the record: some steps of a small model, a part of one of a large
# calls, calls inside of which it is, collectives, whether it ended as planned, patience in seconds,
# bytes a second, whether it is guarded
_HEAD = struct.Struct("qqqqddq")
_TEXT = struct.Struct("128s")
_PLACES = {"call": 64, "collective": 192, "reason": 320}
_REASON = struct.Struct("1024s")
_RECORD = 2048  # where the record of the last entries begins, a ring
_ENTRY = struct.Struct("d128s")  # seconds since 1970, what


RECORD_PATH = "AUTODDL_RECORD"  # the environment: where a lost job's record goes; empty for none


@dataclass(frozen=True)
class Done:
    """A reading: see `Journal`."""

    calls: int
    inside: int
    collectives: int
    ended: bool
    patience_s: float
    link_bytes_per_s: float
    is_guarded: bool
    call: str
    collective: str
    reason: str


class Journal:
    """Written by one process, read by another, without locks: a reading may be one entry old.

    calls:      made so far of those that all ranks make together, such as steps
    inside:     whether the last one has not returned
    call:       the last one, with its number, such as "step 6"
    collective: the last one asked for; both are in the record of the last entries, too
    patience_s: how long a step may take
    link_bytes_per_s: what the plan expects of the links between hosts; 0 before there is a plan
    is_guarded: the rank has imported autoddl, and from then on says how it ends
    ended:      the rank leaves as it should
    reason:     it leaves as it should not, and has said why
    """

    def __init__(self, descriptor: int) -> None:
        size = _RECORD + _KEPT * _ENTRY.size
        os.ftruncate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        self._head = [0, 0, 0, 0, 0.0, 0.0, 0]
        self._entries = 0
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def inside(self, call: str) -> Iterator[None]:
        """The rank is in a call that all ranks make together; a call in a call is not counted."""
        if self._head[1]:
            yield
            return
        self._counts[call] += 1
        name = f"{call} {self._counts[call]}"
        self._write("call", name)
        self._record(f"{name} begins")
        self._put(0, self._head[0] + 1)
        self._put(1, 1)
        end = "fails"
        try:
            yield
            end = "ends"
        finally:
            self._put(1, 0)
            self._record(f"{name} {end}")

    def collective(self, what: str) -> None:
        """A collective is asked for."""
        self._put(2, self._head[2] + 1)
        self._write("collective", what)
        self._record(what)

    @property
    def patience_s(self) -> float:
        return self._head[4]

    def be_patient(self, seconds: float) -> None:
        """A step may take so long."""
        self._put(4, seconds)

    def expect_link(self, bytes_per_s: float) -> None:
        """The plan counts on links between hosts that carry so much."""
        self._put(5, bytes_per_s)

    def guard(self, is_guarded: bool) -> None:
        """Whether this rank says from now on how it ends."""
        self._put(6, int(is_guarded))

    def end(self, reason: str = "") -> None:
        """This rank ends: as it should, without a reason."""
        if reason:
            raw = reason.encode()[: _REASON.size]
            _REASON.pack_into(self._memory, _PLACES["reason"], raw)
        else:
            self._put(3, 1)

    def read(self) -> Done:
        """What the other process has written."""
        calls, inside, collectives, ended, patience_s, link, guarded = _HEAD.unpack_from(
            self._memory, 0
        )
        call, collective = (self._text(_TEXT, name) for name in ("call", "collective"))
        reason = self._text(_REASON, "reason")
        return Done(
            calls, inside, collectives, bool(ended), patience_s, link, bool(guarded), call,
            collective, reason,
        )  # fmt: skip

    def record(self) -> list[tuple[float, str]]:
        """The last entries, oldest first, each with its time in seconds since 1970."""
        places = range(_RECORD, _RECORD + _KEPT * _ENTRY.size, _ENTRY.size)
        entries = [_ENTRY.unpack_from(self._memory, place) for place in places]
        return [
            (at, raw.rstrip(b"\0").decode(errors="replace")) for at, raw in sorted(entries) if at
        ]

    def _record(self, what: str) -> None:
        place = _RECORD + self._entries % _KEPT * _ENTRY.size
        _ENTRY.pack_into(self._memory, place, time.time(), what.encode()[: _TEXT.size])
        self._entries += 1

    def _put(self, index: int, value: float) -> None:
        self._head[index] = value
        _HEAD.pack_into(self._memory, 0, *self._head)

    def _write(self, name: str, text: str) -> None:
        _TEXT.pack_into(self._memory, _PLACES[name], text.encode()[: _TEXT.size])

    def _text(self, form: struct.Struct, name: str) -> str:
        (raw,) = form.unpack_from(self._memory, _PLACES[name])
        return raw.rstrip(b"\0").decode(errors="replace")


def record_file() -> IO[str]:
    """What all ranks did last is written there: the user's choice, or a new temporary file."""
    if path := os.environ.get(RECORD_PATH):
        return open(path, "w")
    import tempfile

    return tempfile.NamedTemporaryFile(
        "w", prefix="autoddl-record-", suffix=".txt", delete=False
    )  # fmt: skip
