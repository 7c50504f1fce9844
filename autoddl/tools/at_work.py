"""A sign of life on stderr while a command works.

It says what is being done, for how long, what was found last, and what is left: planning tells that
to the logger `autoddl`, as `logging` has it (`plans.format`). A command that is quick says nothing.
On a terminal one line changes in place; elsewhere, as in a log, a line is written now and then.
Ranks of a job say nothing: who has started them does. Warnings stay, as lines below.
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

from ..plans.format import LEFT
from .errors import plain

FIRST_S = 0.5  # of silence: with the imports before it nobody waits for 2 s without a sign
EVERY_S = 1.0  # between two signs on a terminal, where the last one is written over
LOG_EVERY_S = 15.0  # between two lines elsewhere, which stay
LOGGER = "autoddl"
_LEAST_FOUND = 23  # of what was found: `; best so far 3.21 ms` and a mark
_LEAST = 8  # characters of what is done are shown in the narrowest terminal


@contextlib.contextmanager
def at_work(
    what: str,
    stream: TextIO | None = None,
    first_s: float = FIRST_S,
    budget_s: float | None = None,
) -> Iterator[None]:
    """Say `what` is done while the block runs.

    stream: stderr by default
    first_s: of silence; 0 before a framework is imported, which holds up all threads
    budget_s: that the command may take until it has a plan
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return
    sign = _Sign(what, stream or sys.stderr, first_s, budget_s)
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
    """Writes the signs from a thread of its own; as a log's handler it keeps the last messages."""

    def __init__(self, what: str, stream: TextIO, first_s: float, budget_s: float | None) -> None:
        super().__init__()
        self._what = plain(what)
        self._of = "" if budget_s is None else f" of {budget_s:g}"
        self._found = ""
        self._left = ""
        self._warnings: list[str] = []
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
        for told in dict.fromkeys(self._warnings):
            self._stream.write(f"{told}\n")
        self._stream.flush()

    def emit(self, record: logging.LogRecord) -> None:
        told = plain(record.getMessage())
        if record.levelno >= logging.WARNING:
            self._warnings.append(told)
        elif record.name == LEFT:
            self._left = told
        else:
            self._found = told

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
        """Of so many characters: what is done gives way first, then the rest of what was found."""
        spent = f": {time.monotonic() - self._started:.0f}{self._of} s"
        found, after = (f"; {told}" if told else "" for told in (self._found, self._left))
        what = _cut(self._what, max(most - len(spent + found + after), _LEAST + 1))
        found = _cut(found, max(most - len(what + spent + after), _LEAST_FOUND))
        return _cut(what + spent + found + after, most)


def _cut(text: str, most: float) -> str:
    """At most so many characters of it, with a mark at the end where some are missing."""
    return text if len(text) <= most else f"{text[: max(int(most) - 1, 0)]}\u2026"[: int(most)]
