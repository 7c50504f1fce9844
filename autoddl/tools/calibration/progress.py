"""Progress of a calibration on a terminal, also when its ranks run below another process.

Rank 0 shows a bar where its output is a terminal. Where it is not, it prints lines: for the
process that started the ranks (`relayed`), which shows the bar, or every few seconds for a log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column as TableColumn

from ...runtime.measure.measured import Progress

RELAY = "AUTODDL_CALIBRATE_RELAY"  # set for ranks whose lines are read by `relayed`
MARK = "@progress "
LOG_SECONDS = 10.0  # between two lines where the output is no terminal


class Reporter:
    """Shows progress on `stream`; nothing if `quiet`. A context."""

    def __init__(self, stream: IO[str], quiet: bool = False) -> None:
        self._stream = stream
        self._bar = _bar(stream) if stream.isatty() and not quiet else None
        self._task = None if self._bar is None else self._bar.add_task("", total=None)
        self._relay = RELAY in os.environ
        self._quiet = quiet
        self._last = 0.0

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, now: Progress) -> None:
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=now.share, total=1.0, description=_words(now))
        elif self._relay:
            self._print(MARK + json.dumps(dataclasses.asdict(now)))
        elif time.monotonic() - self._last > LOG_SECONDS:
            self._last = time.monotonic()
            self._print(f"{now.share:.0%}: {_words(now)}")

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


@contextlib.contextmanager
def relayed(stream: IO[str]) -> Iterator[IO[str]]:
    """A stream for the output of ranks: progress lines become progress on `stream`."""
    reporter = Reporter(stream)  # shows itself what the ranks below only say
    os.environ[RELAY] = "1"
    try:
        with reporter:
            yield _Relay(stream, reporter)
    finally:
        del os.environ[RELAY]


class _Relay(io.StringIO):
    """Hands progress lines to a reporter and all others on."""

    def __init__(self, stream: IO[str], reporter: Reporter) -> None:
        super().__init__()
        self._stream = stream
        self._reporter = reporter

    def write(self, text: str, /) -> int:
        for line in text.splitlines():
            if line.startswith(MARK):
                self._reporter(Progress(**json.loads(line.removeprefix(MARK))))
            else:
                print(line, file=self._stream, flush=True)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _bar(stream: IO[str]) -> Bar:
    words = TextColumn("{task.description}", table_column=TableColumn(no_wrap=True))
    return Bar(BarColumn(6), TaskProgressColumn(), words, console=Console(file=stream))


def _words(now: Progress) -> str:
    counted = f", {now.done} of {now.total} {now.units}" if now.total else ""
    known = "" if now.known is None else f" to {now.known:.0%}"
    times = f"{_minutes(now.spent_s)} gone, {_minutes(now.left_s)} left"
    return f"{times}{counted}{known}: {now.what}"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
