"""What the kernel knows of a rank's connections to other hosts, and which links are not as planned.

A companion asks for it (sock_diag(7)), so that it costs the rank nothing and needs no framework:
how many packets were sent again, for how long a peer has acknowledged nothing, and how fast data
arrive where there were enough of them. Needs the standard library only; without the kernel's answer
nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import pairwise

WINDOW_SECONDS = 30.0  # that a link is looked at: small models send a few packets a second
AGAIN_SECONDS = 60.0  # between two lines about a link that stays bad
STUCK_TIMES = 3  # a packet is sent again without any answer: 1.4 s by Linux's shortest timer
# a clean link of the box, full for 16 s with 18 processes on 2 cores, stays below both, and so did
# 41 short jobs there whose links were clean; jobs that lose 5 % were named at 3 to 8 of 87 to 193
LOST_SHARE, LOST_LEAST = 0.01, 3
SLOW = 4.0  # times slower than planned: what a host's devices share is not planned for each
SLOW_LEAST = 5  # readings that data had waited for the link
FULL = (
    1000  # bytes a packet: of data. Words of 100 bytes that wait behind them are slow on any link
)
_NETLINK_SOCK_DIAG, _DIAG_BY_FAMILY, _ERROR, _DONE = 4, 20, 2, 3
_REQUEST, _DUMP, _ESTABLISHED, _INFO = 1, 0x300, 1 << 1, 2
_HEAD = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72  # struct inet_diag_msg
# address -> packets, sent again, bytes that arrived, seconds on the way, stuck_s, bytes_per_s
Peers = Mapping[str, list[float]]


@dataclass
class _Sum:
    """Of a rank's connections to one address.

    again:    of the packets those that were sent again
    arrived:  bytes
    busy_s:   while any of them were on the way
    stuck_s:  since the other end has acknowledged anything, if it does not do so any more
    rate:     bytes a second of late, of what did not wait for the sender
    """

    packets: int = 0
    again: int = 0
    arrived: int = 0
    busy_s: float = 0.0
    stuck_s: float = 0.0
    rate: float = 0.0

    def add(self, info: bytes) -> None:
        """info: struct tcp_info"""
        if len(info) < 176:  # a kernel before 4.10
            return
        since_ms, again, segments = (struct.unpack_from("=I", info, at)[0] for at in (56, 100, 156))
        arrived, rate, busy_us = (struct.unpack_from("=Q", info, at)[0] for at in (120, 160, 168))
        self.packets += segments
        self.again += again
        self.arrived += arrived
        self.busy_s += busy_us / 1e6
        if info[2] >= STUCK_TIMES:
            self.stuck_s = max(self.stuck_s, since_ms / 1000)
        if not info[7] & 1:  # else the sender had too little to fill the link
            self.rate = max(self.rate, float(rate))


def peers_of(pid: int) -> Peers:
    """Of process `pid`, which is in this process's network, by address on other hosts."""
    found: defaultdict[str, _Sum] = defaultdict(_Sum)
    with contextlib.suppress(OSError, struct.error, ValueError):
        own = set(_sockets(pid))
        for family in (socket.AF_INET, socket.AF_INET6):
            for inode, here, there, info in _connections(family):
                if inode in own and here != there and not there.startswith("127."):
                    found[there].add(info)
    return {at: list(astuple(one)) for at, one in found.items()}


def _sockets(pid: int) -> Iterator[int]:
    """The inodes of a process's sockets."""
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            kind, _, inode = os.readlink(f"{folder}/{name}").partition("socket:[")
            if not kind:
                yield int(inode[:-1])


def _connections(family: int) -> Iterator[tuple[int, str, str, bytes]]:
    """Inode, own and other address, and tcp_info of every connection of this network."""
    ask = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _ESTABLISHED)
    size = 4 if family == socket.AF_INET else 16
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        head = _HEAD.pack(_HEAD.size + len(ask), _DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0)
        kernel.send(head + ask)
        while True:
            data = kernel.recv(1 << 18)
            while len(data) >= _HEAD.size:
                length, kind, *_ = _HEAD.unpack_from(data)
                if kind in (_ERROR, _DONE):
                    return
                message, data = data[_HEAD.size : length], data[(length + 3) & ~3 :]
                here, there = (_address(message[at : at + size]) for at in (8, 24))
                (inode,) = struct.unpack_from("=I", message, 68)
                yield inode, here, there, _attribute(message[_MESSAGE_BYTES:], _INFO)


def _address(raw: bytes) -> str:
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, raw).removeprefix("::ffff:")


def _attribute(data: bytes, wanted: int) -> bytes:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if kind == wanted:
            return data[4:length]
        data = data[max(4, (length + 3) & ~3) :]
    return b""


@dataclass(frozen=True)
class Stuck:
    """A rank whose packets the host at address `there` has not acknowledged for so long."""

    rank: int
    there: str
    seconds: float


class Links:
    """All links between hosts, by what the ranks' companions report, as rank 0's one sees them.

    planned: bytes a second between two hosts; 0 while it is not known
    """

    def __init__(self) -> None:
        self.planned = 0.0
        self._seen: defaultdict[tuple[int, str, str], deque[tuple[float, list[float]]]]
        self._seen = defaultdict(deque)
        self._said: dict[tuple[str, str], float] = {}

    def note(self, rank: int, here: str, peers: Peers) -> None:
        """A report of a rank at address `here`."""
        now = time.monotonic()
        for there, values in peers.items():
            seen = self._seen[rank, here, there]
            seen.append((now, values))
            while now - seen[0][0] > WINDOW_SECONDS:
                seen.popleft()

    def stuck(self) -> Stuck | None:
        """The one that lasts longest."""
        last = [Stuck(n, there, seen[-1][1][4]) for (n, _, there), seen in self._seen.items()]
        return max((one for one in last if one.seconds), key=lambda one: one.seconds, default=None)

    def news(self) -> list[str]:
        """Lines about links that have become bad, are still bad, or are good again."""
        now, bad = time.monotonic(), self._bad()
        lines = []
        for link, why in bad.items():
            if now - self._said.get(link, -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._said[link] = now
                lines.append(f"autoddl: the link from {link[0]} to {link[1]} {why}")
        for link in [link for link in self._said if link not in bad]:
            del self._said[link]
            lines.append(f"autoddl: the link from {link[0]} to {link[1]} is as planned again")
        return lines

    def _bad(self) -> dict[tuple[str, str], str]:
        found = {}
        for (_, here, there), readings in self._seen.items():
            seen = [_Sum(*values) for _, values in readings]  # type: ignore[arg-type]
            first, last = seen[0], seen[-1]
            packets, again = last.packets - first.packets, last.again - first.again
            rates = [
                now.rate
                for before, now in pairwise(seen)
                if now.rate and now.arrived - before.arrived > FULL * (now.packets - before.packets)
            ]
            instead = ""
            if (busy_s := last.busy_s - first.busy_s) > 0 and self.planned:
                carried = (last.arrived - first.arrived) / busy_s / 1e6
                instead = f"; it carries {carried:.3g} MB/s, planned are {self.planned / 1e6:.3g}"
            if again >= LOST_LEAST and again > LOST_SHARE * packets:
                found[here, there] = (
                    f"loses packets: {again:.0f} of {packets:.0f} in {WINDOW_SECONDS:.0f} s were "
                    f"sent again ({again / max(1, packets):.1%}){instead}"
                )
            elif len(rates) >= SLOW_LEAST and max(rates) * SLOW < self.planned:
                found[here, there] = f"is slow{instead}"
        return found
