"""A process beside each rank that sees whether the rank goes on, and ends it if the job is lost.

OneFlow waits for hours for a rank that is stopped, sleeps, has ended or cannot be reached, often
with Python's lock held, so that no thread of the rank could do anything about it. The companion
knows its rank by the kernel (pidfd, /proc) and by the rank's `Journal`. It is connected to the
companion of rank 0, the hub, by TCP, tells it what its rank does, and hears what is wrong with the
job. The hub alone judges (`judge`), prints the cause once, writes what each rank did last to one
file (`RECORD_PATH`), and all companions kill their ranks.

Hub and spokes take a connection for the other's only if it knows the job's secret (`secret.py`).
Needs the standard library only, and is started without `site`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict

from .journal import RECORD_PATH, Journal, record_file
from .links import Links
from .own import Own
from .secret import LONGEST, STRANGERS, listener, nonce, proof, proves, watch_ports
from .verdict import START_SECONDS, Cause, Rank, judge

TICK_SECONDS = 0.5  # between two looks at the rank: 0.1 ms of CPU each
LAST_WORDS_SECONDS = 0.5  # a rank that fails is heard, and a launcher names its status, first
NEWS_SECONDS = 0.1  # until another companion has said that its rank has ended
TELL_SECONDS = 20.0  # for a hub to come up that is to hear of a rank's end: hosts may be slow
GREETING_SECONDS = 5.0  # for a hub to prove that it is one; hosts may be busy
RECORD_SECONDS = 0.5  # for the ranks' records to come: our launcher ends what is left after 2 s


def start(descriptor: int, limit_s: float) -> None:
    """Start this process's companion; `descriptor` is of its journal's memory."""
    import subprocess

    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
    code = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import main; main()"
    process = os.pidfd_open(os.getpid())  # by this process, which may end before the companion runs
    words = [sys.executable, "-I", "-S", "-c", code, *map(str, (os.getpid(), process, descriptor))]
    subprocess.Popen(
        [*words, str(limit_s)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        pass_fds=(process, descriptor),
    )  # fmt: skip
    os.close(process)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for the ranks
    pid, process, descriptor = map(int, sys.argv[1:4])
    limit_s = float(sys.argv[4])
    own = Own(pid, process, Journal(descriptor))
    rank = int(os.environ["RANK"])
    with contextlib.suppress(KeyboardInterrupt):
        (Hub if rank == 0 else Spoke)(own, limit_s).run()


class Companion(ABC):
    """What hub and spokes have in common: one loop over the rank's end, sockets and time."""

    def __init__(self, own: Own, limit_s: float) -> None:
        self.own = own
        self.limit_s = limit_s
        self.size = int(os.environ["WORLD_SIZE"])
        self.selector = selectors.DefaultSelector()
        self.selector.register(own.process, selectors.EVENT_READ, None)
        self.is_over = False
        self.told = float("inf")  # when a launcher has told this process to end
        signal.signal(signal.SIGTERM, self._told)
        self._due = 0.0  # when the next look is

    def _told(self, *_: object) -> None:
        """Launchers end a lost job's processes at once, and this one may know why it is lost."""
        self.told = min(self.told, time.monotonic())
        self.own.is_told |= not self.own.is_dead

    def run(self) -> None:
        """Look when it is due, and not at each message: looks are what messages come of."""
        while not self.is_over:
            for key, _ in self.selector.select(max(0.0, self._due - time.monotonic())):
                if key.data is None:
                    self.own.is_dead = True
                    self.selector.unregister(self.own.process)
                    self.soon(0.0)
                else:
                    key.data()
            if not self.is_over and time.monotonic() >= self._due:
                self._due = time.monotonic() + TICK_SECONDS
                self.tick()

    def soon(self, seconds: float) -> None:
        """Something has happened: the next look is no later than in so many seconds."""
        self._due = min(self._due, time.monotonic() + seconds)

    @abstractmethod
    def tick(self) -> None:
        """Look at the rank, and say what others have to know."""

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())


class Line:
    """A connection that carries a JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._bytes = b""

    def send(self, **words: object) -> None:
        with contextlib.suppress(OSError):  # the other end has gone: reading tells
            self.connection.send(json.dumps(words).encode() + b"\n")

    def read(self) -> list[Mapping[str, object]] | None:
        """What has come; None at the end, and after what is no such line."""
        try:
            got = self.connection.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._bytes = (self._bytes + got).split(b"\n")
        if not got or len(self._bytes) > LONGEST:
            return None
        try:
            found = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            return None
        return found if all(isinstance(words, dict) for words in found) else None


class Hub(Companion):
    """Rank 0's."""

    def __init__(self, own: Own, limit_s: float) -> None:
        super().__init__(own, limit_s)
        self.listener = _listener()
        self.lines: dict[int, Line] = {}
        self.tokens: dict[int, object] = {}  # of the ranks that have come, each its companion's own
        self.ranks: dict[int, Rank] = {}
        self.heard: dict[int, float] = {}  # when a rank last said anything
        self.moved: dict[int, float] = {}  # and when it last went on
        self.died: dict[int, float] = {}  # and when its end was known
        self.again: list[Rank] = []  # that their hosts have started again, without the others
        self.links = Links()
        self.strangers: list[Line] = []  # connections that have not proved to be a rank's
        self.started = time.monotonic()
        if self.listener is None:
            self.say("autoddl: no port for a watch over this job is free; it is not watched")
            self.is_over = True
        else:
            self.own.address = self.listener.getsockname()[0]
            self.selector.register(self.listener, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        assert self.listener is not None
        with contextlib.suppress(OSError):
            connection, _ = self.listener.accept()
            line, asked = Line(connection), nonce()
            if len(self.strangers) >= STRANGERS:
                self._close(self.strangers[0])
            self.strangers.append(line)
            line.send(nonce=asked)
            self.selector.register(
                connection, selectors.EVENT_READ, lambda: self._read(line, asked)
            )

    def _read(self, line: Line, asked: str) -> None:
        said = line.read()
        for words in said or ():
            if line in self.strangers:
                rank = words.get("rank")
                if (
                    not isinstance(rank, int)
                    or not 0 < rank < self.size
                    or not proves(words.get("proof"), asked, f"rank {rank}")
                    or not self._is_of_this_job(rank, words.get("token"))
                ):
                    said = None
                    break
                self.strangers.remove(line)
                self.lines[rank] = line
                self.tokens[rank] = words.get("token")
                self.heard[rank] = time.monotonic()
                line.send(proof=proof(words.get("nonce"), "hub"))
            else:
                try:
                    self._note(Rank(**words))  # type: ignore[arg-type]
                except TypeError:  # of another version
                    said = None
                    break
        if said is None:
            self._close(line)

    def _is_of_this_job(self, rank: int, token: object) -> bool:
        """Another job on the same port has the same proofs, if the launcher gives no secret.

        It is this one, started again on one host, if the rank that was here is not any more.
        """
        if self.tokens.get(rank, token) == token:
            return True
        known, silent = self.ranks.get(rank), time.monotonic() - self.heard[rank]
        if known is not None and (known.is_dead or silent > GREETING_SECONDS):
            self.again.append(known)
            self.soon(0.0)
        return False

    def _close(self, line: Line) -> None:
        self.selector.unregister(line.connection)
        line.connection.close()
        self.strangers = [one for one in self.strangers if one is not line]
        self.lines = {rank: one for rank, one in self.lines.items() if one is not line}

    def _note(self, rank: Rank) -> None:
        now, known = time.monotonic(), self.ranks.get(rank.rank)
        if known is None or known.progress != rank.progress:
            self.moved[rank.rank] = now
        self.ranks[rank.rank] = rank
        if known is None or known.peers != rank.peers:
            self.links.note(rank.rank, rank.address, rank.peers)
        self.heard[rank.rank] = now
        if rank.is_dead and not rank.is_over:
            self.died.setdefault(rank.rank, now)
        if rank.is_dead:
            self.soon(NEWS_SECONDS)

    def tick(self) -> None:
        self._note(self.own.look())
        now = time.monotonic()
        for line in self.lines.values():
            line.send(alive=True)
        if now > self.told and not any(map(self._came_first, self.died)):
            self.is_over = now - self.told > NEWS_SECONDS  # nothing was wrong before
            self.soon(NEWS_SECONDS)
            return
        if now - self.died.get(0, 0.0) < NEWS_SECONDS:
            return  # rank 0 may have ended because of another
        cause = judge(
            {rank: self.ranks[rank] for rank in sorted(self.ranks, key=self._order)},
            {rank: now - at for rank, at in self.heard.items()},
            {rank: now - at for rank, at in self.moved.items()},
            now - self.started,
            self.size,
            self.limit_s,
            self.links.stuck(),
        )
        if cause is None and self.again:
            one = self.again[0]
            cause = Cause(
                one.rank,
                f"rank {one.rank} of {self.size} on {one.place} ended without a word, has been "
                "started again and ends the job that it was in",
            )
        self.links.planned = self.ranks[0].link_bytes_per_s
        for line in self.links.news():
            self.say(line)
        if cause is not None:
            self._end(cause)
        elif all(rank.is_over for rank in self.ranks.values()):
            waited = now - self.started > max(self.limit_s, START_SECONDS)
            self.is_over = waited or len(self.ranks) == self.size

    def _came_first(self, rank: int) -> bool:
        """Whether a rank's end came before this process was told to end; its news may be late."""
        return self.died[rank] <= self.told or not self.ranks[rank].is_told

    def _order(self, rank: int) -> tuple[bool, float]:
        """Those that have ended first come first, and before them those that nobody has ended."""
        late = NEWS_SECONDS if rank == 0 else 0.0
        return self.ranks[rank].is_told, self.died.get(rank, float("inf")) + late

    def _end(self, cause: Cause) -> None:
        time.sleep(LAST_WORDS_SECONDS)
        if cause.text:
            self.say(cause.text)
        one = self.ranks.get(cause.rank)
        said = one and f"rank {one.rank} of {self.size} on {one.place} failed and ends the job: "
        for line in self.lines.values():
            line.connection.setblocking(True)
            line.send(over=True, cause=cause.text or (said or "") + (one.reason if one else ""))
        if os.environ.get(RECORD_PATH) != "":
            self._write(self._records())
        self.own.kill()
        self.is_over = True

    def _records(self) -> dict[int, list[tuple[float, str]]]:
        """Those of all ranks whose companions answer in time."""
        found = {0: self.own.record()}
        end = time.monotonic() + RECORD_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank, line in self.lines.items():
                line.connection.setblocking(False)
                selector.register(line.connection, selectors.EVENT_READ, rank)
            while len(selector.get_map()) and (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    said = self.lines[key.data].read()
                    for words in said or ():
                        if "record" in words:
                            found[key.data] = words["record"]  # type: ignore[assignment]
                    if said is None or key.data in found:
                        selector.unregister(key.fileobj)
        return found

    def _write(self, records: Mapping[int, list[tuple[float, str]]]) -> None:
        lines = []
        for number, one in sorted(self.ranks.items()):
            lines.append(f"rank {number} of {self.size} on {one.host}: {one.where}")
            for at, what in records.get(number, ()):
                clock = time.strftime("%H:%M:%S", time.localtime(at))
                lines.append(f"  {clock}.{int(at % 1 * 1e6):06d}  {what}")
        try:
            with record_file() as file:
                file.write("\n".join(lines) + "\n")
            self.say(f"autoddl: what each rank did last is in {file.name}")
        except OSError as error:
            self.say(f"autoddl: what each rank did last could not be written: {error}")


class Spoke(Companion):
    """Another rank's."""

    def __init__(self, own: Own, limit_s: float) -> None:
        super().__init__(own, limit_s)
        self.line: Line | None = None
        self.ports = itertools.cycle(watch_ports())
        self.connected = 0.0
        self.asked = ""  # of the hub, to prove that it is one
        self.token = nonce()  # that tells this companion from one of another start of the rank
        self.greeted = False  # it has
        self.speaks = False  # for its host, whose launcher may show nothing but its own ranks
        self.heard = time.monotonic()
        self.died = float("inf")

    def tick(self) -> None:
        if self.line is None:
            self._connect()
        elif self.greeted:
            look = self.own.look()
            self.line.send(**asdict(look))
            if look.is_over and look.is_dead:
                self.is_over = True
        elif time.monotonic() - self.connected > GREETING_SECONDS:
            self._hang_up()  # something else listens there
        silent = time.monotonic() - self.heard
        limit_s = self.limit_s if self.greeted else max(self.limit_s, START_SECONDS)
        if silent > limit_s + 2 * TICK_SECONDS:  # the hub, which names ranks, comes first
            where = os.environ.get("MASTER_ADDR", "127.0.0.1")
            if not self.greeted and self.own.look().has_met:
                self.say(
                    f"autoddl: {self._me()} trains, but reaches no watch of rank 0's at {where}, "
                    f"port {watch_ports()[0]}, and is not watched; "
                    "AUTODDL_WATCH_PORT chooses the port"
                )
                self.is_over = True
                return
            what = f"rank 0 of {self.size} on {where} has not come"
            if self.greeted:
                what = (
                    f"{self._me()} has heard nothing from rank 0 on {where} for {silent:.0f} s: "
                    "that host or the link between them is down,"
                )
            self._end(f"{what} and ends the job")
        elif self.own.is_dead and not self.greeted and self._has_given_up():
            self.is_over = True

    def _has_given_up(self) -> bool:
        """On telling the hub, if it ever comes, that the rank has ended."""
        look = self.own.look()
        if look.reason and self.died == float("inf"):  # it has said so: its reader need not wait
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self.died = min(self.died, time.monotonic())
        seconds = TELL_SECONDS if look.is_guarded else GREETING_SECONDS
        return look.ended or time.monotonic() > self.died + seconds

    def _me(self) -> str:
        look = self.own.look()
        return f"rank {look.rank} of {self.size} on {look.place}"

    def _connect(self) -> None:
        for _ in watch_ports():
            with contextlib.suppress(OSError):
                address = os.environ.get("MASTER_ADDR", "127.0.0.1"), next(self.ports)
                self.connected = time.monotonic()
                self.line = Line(socket.create_connection(address, TICK_SECONDS))
                self.own.address = self.line.connection.getsockname()[0]
                is_far = self.line.connection.getpeername()[0] != self.own.address
                self.speaks = is_far and os.environ.get("LOCAL_RANK", "0") == "0"
                self.selector.register(self.line.connection, selectors.EVENT_READ, self._read)
                return

    def _read(self) -> None:
        assert self.line is not None
        said = self.line.read()
        for words in said or ():
            if not self.greeted and "nonce" in words:
                rank, self.asked = int(os.environ["RANK"]), nonce()
                mine = proof(words["nonce"], f"rank {rank}")
                self.line.send(rank=rank, proof=mine, nonce=self.asked, token=self.token)
                continue
            if not self.greeted and not proves(words.get("proof"), self.asked, "hub"):
                said = None  # a stranger, where the hub should be
                break
            self.heard = time.monotonic()
            if not self.greeted:
                self.greeted = True
                self.soon(0.0)
            elif words.get("over"):
                self.line.send(record=self.own.record())
                self._end(str(words.get("cause", "")) if self.speaks else "")
        if said is None:
            self._hang_up()
            if self.own.look().is_over or self.told <= time.monotonic():
                self.is_over = True
            elif self.greeted and not self.is_over:
                where = os.environ.get("MASTER_ADDR", "127.0.0.1")
                self._end(f"rank 0 of {self.size} on {where} has ended and ends the job")

    def _hang_up(self) -> None:
        assert self.line is not None
        self.selector.unregister(self.line.connection)
        self.line.connection.close()
        self.line = None

    def _end(self, text: str) -> None:
        if text:
            self.say(text)
        self.own.kill()
        self.is_over = True


def _listener() -> socket.socket | None:
    for port in watch_ports():
        with contextlib.suppress(OSError):
            found = listener(port)
            found.setblocking(False)
            return found
    return None
