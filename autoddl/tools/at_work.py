"""A sign of life on stderr while a command works.

It says what is being done, for how long, and what was found last: planning tells that to the
logger `autoddl`, as `logging` has it. A command that is quick says nothing. On a terminal one line
changes in place; elsewhere, as in a log, a line is written now and then. Ranks of a job say
nothing: who has started them does.
"""

import contextlib
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from .errors import plain

FIRST_S = 0.5  # of silence: with the imports before it nobody waits for 2 s without a sign
EVERY_S = 1.0  # between two signs on a terminal, where the last one is written over
LOG_EVERY_S = 15.0  # between two lines elsewhere, which stay
LOGGER = "autoddl"
_LEAST = 8  # characters of what is done are shown in the narrowest terminal


@contextlib.contextmanager
def at_work(what: str, stream: TextIO | None = None, first_s: float = FIRST_S) -> Iterator[None]:
    """Say `what` is done while the block runs.

    stream: stderr by default
    first_s: of silence; 0 before a framework is imported, which holds up all threads
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return
    sign = _Sign(what, stream or sys.stderr, first_s)
    logger = logging.getLogger(LOGGER)
    level = logger.level
    logger.addHandler(sign)
    logger.setLevel(logging.INFO)
    try:
        with sign:
            yield
    finally:
        logger.removeHandler(sign)
        logger.setLevel(level)


class _Sign(logging.Handler):
    """Writes the signs from a thread of its own; as a log's handler it keeps the last message."""

    def __init__(self, what: str, stream: TextIO, first_s: float) -> None:
        super().__init__()
        self._what = plain(what)
        self._last = ""
        self._first_s = first_s
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._started = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        if self._is_terminal:
            self._stream.write("\r\x1b[K")  # the line is empty again
            self._stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        self._last = plain(record.getMessage())

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._done.wait(wait_s):
            wait_s = EVERY_S if self._is_terminal else LOG_EVERY_S
            line = self._line(math.inf)
            if self._is_terminal:
                width = shutil.get_terminal_size().columns or 80  # 0: nobody has told its size
                line = f"\r{self._line(width - 1)}\x1b[K"
            self._stream.write(line if self._is_terminal else f"{line}\n")
            self._stream.flush()

    def _line(self, most: float) -> str:
        """Of so many characters: of what is done the end gives way to what was found."""
        what, found = self._what, f": {time.monotonic() - self._started:.0f} s"
        found = f"{found}; {self._last}" if self._last else found
        if len(what) + len(found) <= most:
            return what + found
        most = int(most)
        return f"{what[: max(most - len(found) - 1, _LEAST)]}\u2026{found}"[:most]
