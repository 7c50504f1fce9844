"""The one question that everything above the back end may ask of it: can OneFlow be used here?"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from .jobs.launch import NO_NEWS


class BackendMissing(ImportError):
    """OneFlow is needed for this call and cannot be imported."""


def need_oneflow(call: str) -> None:
    """Raise BackendMissing, naming the call, if OneFlow cannot be imported."""
    try:
        with contextlib.nullcontext() if "oneflow" in sys.modules else _without_no_news():
            import oneflow  # noqa: F401
    except ImportError as error:
        raise BackendMissing(
            f"{call} needs OneFlow, which cannot be imported here ({error}). Planning saved graphs "
            "works without it; 'autoddl doctor' says how to install it"
        ) from error


@contextlib.contextmanager
def _without_no_news() -> Iterator[None]:
    """Everything that this process writes to stderr meanwhile arrives, but for the line `NO_NEWS`.

    OneFlow's libraries write it themselves, so it is taken out on its way; by another process, as
    nothing else must be lost if this one is killed.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        command = ["grep", "-vxF", "--line-buffered", NO_NEWS]
        grep = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=kept)
    except OSError:  # there is no grep: then the line is seen
        os.close(kept)
        yield
        return
    with grep:
        assert grep.stdin is not None
        os.dup2(grep.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
