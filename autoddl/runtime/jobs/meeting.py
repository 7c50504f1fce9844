"""The ranks of a job connect over TCP before the framework starts, and then monitor each other.

OneFlow, for one, waits for hours for a rank that never comes and does not say which. Here rank 0
waits for all others at MASTER_ADDR:MASTER_PORT for a limited time and names the hosts that are
missing. The connections stay open: a rank that ends, or whose host stops answering, ends the job
with its name.

    first contact at MASTER_PORT  -> the number of another port, as the framework wants this one
    hello of each rank there      -> the list of all ranks, or what is wrong

Both listen on the job's address only, and each end proves that it knows the job's secret
(`secret.py`). Every hello is read in a thread, so that nobody can delay another's.

Needs the standard library only, so that it can run before the framework is imported.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from .guard import leave, rank, world_size
from .secret import STRANGERS, listener, nonce, proof, proves

RETRY_SECONDS = 0.2  # between attempts to connect to a rank 0 that does not listen yet
PING_SECONDS = 5.0  # a live host answers each ping, which tells a busy one from a lost one
OWN_WORDS_SECONDS = 2.0  # a rank that fails may still print why, before the others end the job
LONGEST_HELLO, LONGEST = 1024, 1 << 24  # bytes of a line: of anyone, and of rank 0 that is known
HELLO_SECONDS = 10.0  # for each end to prove who it is
_CLOSED = errno.EINVAL, errno.EBADF  # what a listener that is shut down or closed says
START_SECONDS = 120.0  # a generous limit for rank 0 to import the framework and listen


@dataclass(frozen=True)
class Place:
    """A rank and the host on which it runs."""

    rank: int
    local_rank: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class Meeting:
    """All ranks of the job, in order. As a context manager: they monitor each other inside it."""

    def __init__(self, places: Sequence[Place], lines: Sequence[_Line], limit_s: float) -> None:
        self.places = tuple(places)
        self._lines = list(lines)
        self._limit = limit_s
        self._closing = threading.Event()
        self._task: tuple[str, float] | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in the order of their first ranks."""
        return tuple(dict.fromkeys(place.host for place in self.places))

    @property
    def gpus_per_node(self) -> int:
        """Processes per host, from the local ranks."""
        return 1 + max(place.local_rank for place in self.places)

    def __enter__(self) -> Meeting:
        for line in self._lines:
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()
        if self._lines:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._closing.set()
            for line in self._lines:
                line.say("done")
        for line in self._lines:
            line.close()

    def task(self, what: str, seconds: float) -> None:
        """From now on all ranks do `what`, which must not take longer than `seconds`."""
        self._task = (what, time.monotonic() + seconds)

    def _listen(self, line: _Line) -> None:
        """Answer and record signs of life until the connection closes."""
        for word in line.words():
            line.heard = time.monotonic()
            if word == "ping":
                line.say("pong")
            elif word == "done":
                return
        if not self._closing.is_set():
            time.sleep(OWN_WORDS_SECONDS)
            if not self._closing.is_set():
                leave(f"{line.place} has ended")

    def _watch(self) -> None:
        while not self._closing.wait(min(PING_SECONDS, self._limit / 4)):
            now = time.monotonic()
            late = self._task is not None and now > self._task[1]
            for line in self._lines:
                line.say("ping")
                if now - line.heard > self._limit and not self._closing.is_set():
                    leave(f"{line.place} has not answered for {self._limit:.0f} s")
            if late and self._task is not None and not self._closing.is_set():
                leave(
                    f"{self._task[0]} has not ended in its time, though all ranks answer "
                    f"(hosts {', '.join(self.hosts)}); raise --timeout if the network is this slow"
                )


class _Line:
    """A connection to the rank at `place`, with one word per line."""

    def __init__(self, connection: socket.socket, place: Place) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        self.place = place
        self.heard = time.monotonic()
        self._connection = connection
        self._lock = threading.Lock()

    def say(self, word: str) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(f"{word}\n".encode())

    def words(self) -> Iterator[str]:
        with contextlib.suppress(OSError, ValueError), self._connection.makefile() as lines:
            for line in lines:
                yield line.strip()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def meet(limit_s: float) -> Meeting:
    """Wait for all ranks of the job; ValueError names those that do not come within `limit_s`."""
    here = Place(rank(), int(os.environ.get("LOCAL_RANK", "0")), socket.gethostname())
    if world_size() == 1:
        return Meeting([here], [], limit_s)
    address = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ["MASTER_PORT"])
    if here.rank == 0:
        return _gather(here, address[1], limit_s)
    return _join(here, address, limit_s)


def _gather(here: Place, port: int, limit_s: float) -> Meeting:
    """The part of rank 0."""
    end = time.monotonic() + limit_s
    with _listener(port) as first, _listener(0) as second:
        threading.Thread(target=_direct, args=(first, second.getsockname()[1]), daemon=True).start()
        lines: dict[int, _Line] = {}
        greeting: list[socket.socket] = []
        while len(lines) < world_size() - 1 and time.monotonic() < end:
            second.settimeout(min(0.1, max(0.01, end - time.monotonic())))
            with contextlib.suppress(OSError):
                connection, _ = second.accept()
                greeting.append(connection)
                threading.Thread(
                    target=_greet, args=(connection, lines, greeting), daemon=True
                ).start()
                if len(greeting) > STRANGERS:
                    greeting[0].shutdown(socket.SHUT_RDWR)
        first.shutdown(socket.SHUT_RDWR)
    places = [here, *(lines[r].place for r in sorted(lines))]
    message = _absent(places, limit_s)
    for line in lines.values():
        line.say(json.dumps({"error": message, "places": [asdict(p) for p in places]}))
    if message:
        raise ValueError(message)
    return Meeting(places, [lines[r] for r in sorted(lines)], limit_s)


def _greet(
    connection: socket.socket, lines: dict[int, _Line], greeting: list[socket.socket]
) -> None:
    """Add a rank's connection to `lines`, and close a stranger's."""
    try:
        asked = nonce()
        end = time.monotonic() + HELLO_SECONDS
        connection.sendall(f"{asked}\n".encode())
        hello = json.loads(_read_line(connection, end))
        place = Place(**hello["place"])
        if not proves(hello["proof"], asked, f"rank {place.rank}"):
            raise ValueError("a stranger")
        connection.sendall(f"{proof(hello['nonce'], 'rank 0')}\n".encode())
        if 0 < place.rank < world_size():
            lines[place.rank] = _Line(connection, place)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        connection.close()
    finally:
        greeting.remove(connection)


def _absent(places: Sequence[Place], limit_s: float) -> str:
    """The message if not all ranks have come, else ''."""
    here = {place.rank for place in places}
    absent = [r for r in range(world_size()) if r not in here]
    if not absent:
        return ""
    width = 1 + max(place.local_rank for place in places)
    nodes = sorted({r // width for r in absent})
    return (
        f"no answer within {limit_s:.0f} s from rank {', '.join(map(str, absent))} (host number "
        f"{', '.join(map(str, nodes))} of the launcher's list, from 0); "
        f"these answered: {', '.join(map(str, places))}. Start one process group per host with "
        "the same --master_addr and --master_port, and let the hosts reach each other by TCP"
    )


def _direct(first: socket.socket, port: int) -> None:
    """Tell everyone who connects to the first port to come to `port`."""
    while True:
        try:
            connection, _ = first.accept()
        except OSError as error:
            if error.errno in _CLOSED:
                return
            time.sleep(RETRY_SECONDS)  # such as too many open files: strangers come and go
            continue
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"{port}\n".encode())


def _join(here: Place, address: tuple[str, int], limit_s: float) -> Meeting:
    """The part of every other rank."""
    host, port = address
    end = time.monotonic() + limit_s
    connection = None
    while connection is None and time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            with socket.create_connection((host, port), 5) as contact:
                other = int(_read_line(contact, time.monotonic() + HELLO_SECONDS))
            connection = introduce(here, host, other)
        if connection is None:
            time.sleep(RETRY_SECONDS)
    if connection is None:
        raise ValueError(
            f"{here} found no rank 0 at {host}:{port} within {limit_s:.0f} s; check --master_addr "
            "and --master_port, and that this host reaches that one by TCP"
        )
    try:
        answer = json.loads(_read_line(connection, time.monotonic() + limit_s + 30, LONGEST))
    except (OSError, ValueError) as error:
        raise ValueError(f"{here}: rank 0 at {host}:{port} has gone: {error}") from error
    if answer["error"]:
        raise ValueError(answer["error"])
    places = [Place(**place) for place in answer["places"]]
    _wait_for_framework(host, port)
    return Meeting(places, [_Line(connection, places[0])], limit_s)


def introduce(here: Place, host: str, port: int) -> socket.socket:
    """A connection to rank 0, which knows this rank. ValueError if it is not rank 0."""
    connection = socket.create_connection((host, port), 5)
    try:
        end, asked = time.monotonic() + HELLO_SECONDS, nonce()
        mine = proof(_read_line(connection, end), f"rank {here.rank}")
        hello = {"place": asdict(here), "proof": mine, "nonce": asked}
        connection.sendall(f"{json.dumps(hello)}\n".encode())
        if not proves(_read_line(connection, end), asked, "rank 0"):
            raise ValueError(f"who answers at {host}:{port} is not rank 0")
    except (OSError, ValueError):
        connection.close()
        raise
    return connection


def _wait_for_framework(host: str, port: int) -> None:
    """Wait until rank 0's framework listens; a rank that connects too early may retry late."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 5):
            return
        time.sleep(RETRY_SECONDS)


def _listener(port: int) -> socket.socket:
    try:
        return listener(port)
    except OSError as error:
        raise ValueError(
            f"port {port} (MASTER_PORT) is taken: {error.strerror}; choose another"
        ) from error


def _read_line(connection: socket.socket, end: float, longest: int = LONGEST_HELLO) -> str:
    """The next line, which comes before `end`; nothing after it is consumed."""
    data = b""
    while not data.endswith(b"\n"):
        if len(data) > longest or time.monotonic() > end:
            raise OSError("the connection ended")
        connection.settimeout(max(0.01, end - time.monotonic()))
        seen = connection.recv(4096, socket.MSG_PEEK)
        data += connection.recv(seen.find(b"\n") + 1 or max(1, len(seen)))
        if not seen:
            raise OSError("the connection ended")
    return data.decode().removesuffix("\n")
