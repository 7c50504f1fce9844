"""Starts the processes of a job on this machine, and ends all of them when one fails.

They run on one host, on several that this machine can enter (the namespaces of `tools.box`), or are
this host's part of a job of which each host starts its own (`Part`). They are watched from their
first moment, and when the launcher itself is killed, the kernel ends them (`guard.py: watched`).

This module needs the standard library only. A script started here finds in its environment what
frameworks read there (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK), as under their own
launchers, such as `python -m oneflow.distributed.launch`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from ..framework import let_python_interrupt
from .guard import watched
from .output import ENDS_THE_JOB, Output, how_each_ended

PROCESSES_PER_CORE = 4  # more of them mostly wait for each other, and may take all of the memory
POLL_SECONDS = 0.05  # how late an ended rank is noticed; twenty checks a second cost nothing
# after a rank has failed: the others notice it themselves and may still print why they end
GRACE_SECONDS = 2.0
RECORD_SECONDS = 1.5  # for the companions to write what all ranks did last
WORD_SECONDS = 1.0  # until what a rank has said last, or its companion of it, is read
TERM_SECONDS = 3.0  # a rank that ignores SIGTERM for so long is killed
# OneFlow's other ranks wait many seconds before they try again if rank 0 does not listen when they
# first connect, so they start after it does; but rank 0 may be a script without a framework
LISTEN_SECONDS = 5.0
STOPPED = (130, 143)  # statuses of a job that was asked to end, by Ctrl-C and by SIGTERM
PORTS = range(20000, 32768)  # below Linux's own, by default
_LISTEN = "0A"  # the state in /proc/net/tcp


@dataclass(frozen=True)
class Host:
    """A host of the job: its address for the other hosts, and a command prefix that enters it."""

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """Which part of a job runs here, if each of its hosts starts its own.

    host:    this one's number, of `hosts`, from 0
    address: of host 0, for the others
    port:    there, on which the framework's ranks meet
    """

    hosts: int
    host: int
    address: str
    port: int

    def __post_init__(self) -> None:
        if not 0 <= self.host < self.hosts:
            raise ValueError(
                f"the hosts of {self.hosts} are 0 to {self.hosts - 1}, got {self.host}"
            )


def run_processes(
    script_args: Sequence[str],
    nproc: int,
    env: Mapping[str, str] | None = None,
    *,
    hosts: Sequence[Host] = (Host(),),
    part: Part | None = None,
    output: IO[str] | None = None,
    prefix: bool = True,
    timeout: float | None = None,
    overlaps: bool = False,
) -> int:
    """Run `python script_args` as `nproc` ranks and return the exit status of the job.

    script_args: a script and its arguments, or `-m module ...`
    env:         variables to add to this process's environment
    hosts:       where the ranks run, equally many on each
    part:        these are not all of the job, but those of one host
    output:      where the ranks' lines go (default: stdout), each preceded by `[rank]` if `prefix`
    timeout:     seconds after which the job is ended with status 124
    overlaps:    transfers run in parallel with computation, as between pipeline stages; each rank
                 then has cores of its own, if there are enough

    Returns 0 if all ranks succeed. The first rank that fails ends the job: its status is returned
    (128 + n if a signal n killed it). Ctrl-C and SIGTERM end all ranks: 130 and 143.
    """
    whole = _whole(nproc, hosts, part)
    sink = Output(output or sys.stdout)
    processes: dict[int, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    try:
        with _signals_raise():
            job = _job_env(
                nproc, whole, {**({} if part else _watch_env()), **(env or {})}, overlaps
            )
            size = nproc * whole.hosts
            for number in range(nproc):
                host, local_rank = divmod(number, nproc // len(hosts))
                rank = number + whole.host * nproc
                own = {**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(local_rank)}
                command = watched([sys.executable, "-u", *script_args])
                processes[rank] = process = _start([*hosts[host].enter, *command], own)
                if overlaps:
                    _bind(process, number, nproc)
                head = f"[{rank}] " if prefix and size > 1 else ""
                readers.append(sink.follow(process, rank, head))
                if rank == 0 and size > 1:
                    _wait_until_listening(process, whole.port)
            deadline = None if timeout is None else time.monotonic() + timeout
            return _wait(processes, size, deadline, sink, readers)
    except KeyboardInterrupt:
        return 130
    except _Terminated:
        return 143
    finally:
        _end(list(processes.values()))
        for reader in readers:
            reader.join(timeout=TERM_SECONDS)
        sink.close()


def _whole(nproc: int, hosts: Sequence[Host], part: Part | None) -> Part:
    """Where the ranks meet, and which of them start here."""
    if nproc < 1:
        raise ValueError(f"a job needs at least one process, got {nproc}")
    if not hosts or nproc % len(hosts):
        raise ValueError(f"{nproc} processes cannot be shared out evenly to {len(hosts)} hosts")
    return part or Part(1, 0, hosts[0].address, free_port())


def crowd(count: int) -> str:
    """ "32 processes on 2 cores" if so many would crawl on this host."""
    cores = len(os.sched_getaffinity(0))
    if count <= PROCESSES_PER_CORE * cores:
        return ""
    return f"{count} processes on {cores} core{'' if cores == 1 else 's'}"


def is_launched() -> bool:
    """True if a launcher has started this process as a rank, or OneFlow has been imported."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def starts_again(status: int, left: int) -> bool:
    """Whether a job that ended with `status` does, and may `left` times; which is said, too."""
    if status in (0, *STOPPED) or not left:
        return False
    more = f"{left - 1} more left" if left > 1 else "the last time"
    print(f"the job ended with status {status}; it starts again ({more})", file=sys.stderr)
    return True


def free_port() -> int:
    """A TCP port on which nothing on this machine listens at the moment.

    It is none of those that the kernel gives to connections that go out: one of them, or another
    job, might take it before this job listens there.
    """
    for _ in range(1000):
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ValueError(f"no port of {PORTS[0]} to {PORTS[-1]} is free on this machine")


def _watch_env() -> dict[str, str]:
    """Of the ranks' companions."""
    return {
        "AUTODDL_WATCH_PORT": str(free_port()),
        "AUTODDL_SECRET": secrets.token_hex(16),
    }


def _job_env(nproc: int, whole: Part, env: Mapping[str, str], overlaps: bool) -> dict[str, str]:
    cores = os.cpu_count() or 1
    defaults = {
        "GLOG_minloglevel": "2",
        "OMP_NUM_THREADS": str(max(1, cores // nproc)),
        # OneFlow runs up to ten operations as one, and frees what they have read when all of them
        # are done: gradients stay while the bucket that they were laid into travels
        "ONEFLOW_VM_PENDING_HANDLE_WINDOW_SIZE": "1",
    }
    if cores < (1 if overlaps else 2) * nproc:
        # OneFlow's scheduling and computing threads poll; two of them on one core take turns
        # slowly (8 ranks on 2 cores: an all-reduce of pairs takes 0.7 instead of 9 ms). But as one
        # thread they hold all computation up while a transfer waits for its peer.
        defaults["ONEFLOW_VM_COMPUTE_ON_WORKER_THREAD"] = "0"
    return {
        **{key: value for key, value in defaults.items() if key not in os.environ},
        "AUTODDL_WATCHED": "",  # if this process is a rank of another job, these are not
        **env,
        "MASTER_ADDR": whole.address,
        "MASTER_PORT": str(whole.port),
        "WORLD_SIZE": str(nproc * whole.hosts),
    }


def _start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
    # a session of its own, so that whatever the rank starts can be ended with it
    return subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _bind(process: subprocess.Popen[str], rank: int, nproc: int) -> None:
    """Pin a rank to its share of the cores, if there is at least one core for each rank.

    Otherwise two ranks sometimes compute on one core while the threads that poll occupy another.
    """
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // nproc
    if each:
        with contextlib.suppress(ProcessLookupError):  # its end is seen later
            os.sched_setaffinity(process.pid, cores[rank * each : (rank + 1) * each])


def _wait_until_listening(process: subprocess.Popen[str], port: int) -> None:
    """Wait until something listens on `port`, for a limited time: rank 0 may be any script."""
    end = time.monotonic() + LISTEN_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if _is_listening(process.pid, port):
            return
        time.sleep(POLL_SECONDS)


def _is_listening(pid: int, port: int) -> bool:
    """True if the network in which process `pid` runs has a listening TCP socket on `port`."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False


def _wait(
    processes: Mapping[int, subprocess.Popen[str]],
    size: int,
    deadline: float | None,
    sink: Output,
    readers: Sequence[threading.Thread],
) -> int:
    """Wait until all ranks here succeed or one fails; returns its status, 124 at the deadline.

    A rank that aborts has usually lost another one, whose failure is then the cause.
    """
    while True:
        codes = {rank: process.poll() for rank, process in processes.items()}
        failed = [(code == -signal.SIGABRT, rank) for rank, code in codes.items() if code]
        if failed:
            is_abort, rank = min(failed)
            end = time.monotonic() + (GRACE_SECONDS if is_abort else WORD_SECONDS)
            while time.monotonic() < end and not sink.knows_cause:
                codes = {one: process.poll() for one, process in processes.items()}
                sink.how = how_each_ended(codes, sink.lost)
                time.sleep(POLL_SECONDS)
            return _named(processes, size, rank, sink, readers)
        if all(code == 0 for code in codes.values()):
            return 0
        if deadline is not None and time.monotonic() > deadline:
            return 124
        time.sleep(POLL_SECONDS)


def _named(
    processes: Mapping[int, subprocess.Popen[str]],
    size: int,
    rank: int,
    sink: Output,
    readers: Sequence[threading.Thread],
) -> int:
    """The status of the job that `rank` has ended; which rank and how is said, if none has."""
    codes = {one: process.poll() for one, process in processes.items()}
    if codes[rank] == -signal.SIGABRT:
        failed = (n for n, code in codes.items() if code)
        rank = min(failed, key=lambda n: (n in sink.lost, codes[n] == -signal.SIGABRT, n))
    code = codes[rank]
    assert code is not None
    if not sink.knows_cause:
        sink.write(
            f"rank {rank} of {size} {how_each_ended(codes, sink.lost)[rank]} and {ENDS_THE_JOB}"
        )
    end = time.monotonic() + RECORD_SECONDS
    _wait_some(list(processes.values()), GRACE_SECONDS)
    for reader in readers:  # it ends with the rank's companion
        reader.join(max(0.0, end - time.monotonic()))
    return code if code > 0 else 128 - code


def _wait_some(processes: Sequence[subprocess.Popen[str]], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End the running processes and all that they have started: SIGTERM first, then SIGKILL."""
    try:
        _signal(processes, signal.SIGTERM)
        _wait_some(processes, TERM_SECONDS)
    finally:  # also if a second Ctrl-C comes meanwhile
        _signal(processes, signal.SIGKILL)
    _wait_some(processes, TERM_SECONDS)


def _signal(processes: Sequence[subprocess.Popen[str]], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


class _Terminated(Exception):
    pass


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn SIGTERM and Ctrl-C into exceptions, so that the ranks do not outlive their launcher."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, raise_terminated)
    let_python_interrupt()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
