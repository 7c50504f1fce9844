"""A thread of this rank for communication beside computation, where collectives keep their caller.

All that communicates runs in the order in which it was asked for, here or, while nothing is on its
way here, in the caller's own thread: ranks must not meet in one order on one side and in another on
the other. A back end whose framework has a queue of its own for communication needs none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def later(thread: Beside | None, run: Callable[[], T]) -> Callable[[], T]:
    """Run what communicates in a back end's thread; gives what waits for its result.

    Without one it is on its way already when `run` has asked for it.
    """
    if thread is not None and not thread.at_once:
        return thread.later(run)
    result = run()
    return lambda: result


class Beside:
    """begin: called once in the thread, before all else

    Set `at_once` to have all run in the caller's own thread, with nothing beside it.
    """

    def __init__(self, begin: Callable[[], object]) -> None:
        self.at_once = False
        self._begin = begin
        self._thread = 0
        self._pool = ThreadPoolExecutor(1, "communication", self._enter)
        self._last: Future[Any] | None = None

    def _enter(self) -> None:
        self._thread = threading.get_ident()
        self._begin()

    def later(self, run: Callable[[], T]) -> Callable[[], T]:
        """Run it after all before it; gives what waits for its result, or raises its error."""
        self._last = found = self._pool.submit(run)

        def result() -> T:
            value = found.result()
            if self._last is found:  # it would be held until the next one
                self._last = None
            return value

        return result

    def in_order(self, run: Callable[[], T]) -> T:
        """The result of what communicates, after all that was asked for before."""
        last = self._last
        if threading.get_ident() == self._thread or last is None or last.done():
            return run()
        return self.later(run)()

    def wait(self) -> None:
        """Until all is done that was asked for; in the thread itself all before is."""
        last = self._last
        if last is not None and threading.get_ident() != self._thread:
            last.result()
