"""OneFlow jobs that stay: their ranks run one worker script after another.

A rank needs seconds to start (it imports OneFlow), and most workers need less than that. `Jobs.run`
does as `run_processes` does, except that a job is started only where none of that size waits. A
worker that fails ends its job. Tests of how processes start and end, and of what changes autoddl in
them, start their own.

As a script, `ranks.py PORT MODULE...` is such a rank: it imports the modules, takes its work from a
socket, and answers there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = (
    "import sys; from autoddl.runtime.jobs.launch import run_processes; "
    "sys.exit(run_processes(sys.argv[2:], int(sys.argv[1])))"
)
MOST = 18
START_SECONDS = 60.0
GRACE_SECONDS = 2.0  # others may still have something to say when one has failed
TIMED_OUT = 124


class Jobs:
    """One job per number of ranks, each started when it is first needed.

    Those that were used longest ago end where all together would have more than `MOST` ranks.
    """

    def __init__(self, env: Mapping[str, str], modules: Sequence[str] = ("oneflow",)) -> None:
        self._env = env
        self._modules = modules
        self._jobs: dict[int, Job] = {}

    def run(
        self, script: Path, size: int, *args: str, timeout: float, prefix: bool = True
    ) -> tuple[int, str]:
        """The status of a worker on `size` ranks, and what they print."""
        job = self._jobs.pop(size, None) or self._started(size)
        status, texts = TIMED_OUT, {}
        try:
            status, texts = job.run([str(script), *args], timeout)
        finally:
            if status:
                texts[size] = job.end()
            else:
                self._jobs[size] = job
        headed = prefix and size > 1
        lines = (
            (f"[{rank}] " if headed and rank < size else "") + line + "\n"
            for rank, text in sorted(texts.items())
            for line in text.splitlines()
        )
        return status, "".join(lines)

    def _started(self, size: int) -> Job:
        while self._jobs and sum(self._jobs) + size > MOST:
            self._jobs.pop(next(iter(self._jobs))).end()
        return Job(size, self._env, self._modules)

    def end(self) -> None:
        while self._jobs:
            self._jobs.popitem()[1].end()


class Job:
    """Ranks that wait for work."""

    def __init__(self, size: int, env: Mapping[str, str], modules: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self._launcher = subprocess.Popen(
                [sys.executable, "-c", START, str(size), __file__, str(port), *modules],
                cwd=ROOT,
                env={**os.environ, "AUTODDL_TIMEOUT": "0", **env},  # they wait for work
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
            server.settimeout(START_SECONDS)
            self._ranks = [Line(server.accept()[0]) for _ in range(size)]
            self._numbers = [json.loads(line.read()) for line in self._ranks]

    def run(self, words: Sequence[str], timeout: float) -> tuple[int, dict[int, str]]:
        """The status of the first rank that fails, else 0, and what each has printed."""
        end, status, texts = time.monotonic() + timeout, 0, {}
        with selectors.DefaultSelector() as waiting:
            for rank, line in zip(self._numbers, self._ranks, strict=True):
                line.write(json.dumps(words))
                waiting.register(line, selectors.EVENT_READ, (rank, line))
            while waiting.get_map():
                ready = waiting.select(max(0.0, end - time.monotonic()))
                if not ready:
                    return status or TIMED_OUT, texts
                for key, _ in ready:
                    rank, line = key.data
                    waiting.unregister(line)
                    found, texts[rank] = json.loads(line.read() or '[1, "has ended"]')
                    if found and not status:
                        status, end = found, min(end, time.monotonic() + GRACE_SECONDS)
        return status, texts

    def end(self) -> str:
        """What the ranks have printed outside of Python."""
        self._launcher.terminate()
        self._launcher.wait()
        for line in self._ranks:
            line.close()
        with self._output as output:
            output.seek(0)
            return output.read().decode(errors="replace")


class Line:
    """A connection of which one line at a time is read and written."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self._connection = connection
        self._lines = connection.makefile()

    def fileno(self) -> int:
        return self._connection.fileno()

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the other end has gone, and reading tells
            self._connection.sendall(f"{text}\n".encode())

    def read(self) -> str:
        """Empty where the other end has gone."""
        try:
            return self._lines.readline()
        except OSError:
            return ""

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


def main() -> None:
    _, port, *modules = sys.argv
    for module in modules:  # rank 0 is to listen before the others ask for it
        importlib.import_module(module)
    line = Line(socket.create_connection(("127.0.0.1", int(port))))
    line.write(os.environ["RANK"])
    while text := line.read():
        line.write(json.dumps(_answer(json.loads(text))))
    os._exit(0)  # without the roll call at exit: each worker has had its own


def _answer(words: Sequence[str]) -> tuple[int, str]:
    sys.argv = list(words)
    sys.path[0] = str(Path(words[0]).parent)  # as it is for a script
    status, text = 0, io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        except BaseException:
            traceback.print_exc()
            status = 1
    gc.collect()
    if not status and "oneflow" in sys.modules:  # its allocator keeps all it ever had, as libc may
        internal = sys.modules["oneflow"]._oneflow_internal
        internal.eager.Sync()
        internal.EmptyCache()
        ctypes.CDLL(None).malloc_trim(0)
    return status, text.getvalue()


if __name__ == "__main__":
    main()
