"""What the kernel knows of connections, and which links are said not to be as planned."""

import os
import socket

import pytest

from autoddl.runtime.jobs import links
from autoddl.runtime.jobs.links import Links, Stuck

ENDS = 1, "10.0.1.2"
THERE = "10.0.2.2"


@pytest.fixture
def clock(monkeypatch):
    """`clock[0]` is the time."""
    now = [100.0]
    monkeypatch.setattr(links.time, "monotonic", lambda: now[0])
    return now


def reported(clock, *reports, planned=0.0, every_s=2.0):
    """The lines after each report: packets, sent again, bytes, busy_s, stuck_s, bytes a second."""
    found = Links()
    found.planned = planned
    said = []
    for report in reports:
        found.note(*ENDS, {THERE: list(report)})
        said.append(found.news())
        clock[0] += every_s
    return said


def test_the_kernel_answers():
    """Of this process's own connections, none of which leaves the host."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"x" * 10000)
        assert len(other.recv(10000, socket.MSG_WAITALL)) == 10000
        own = {os.fstat(end.fileno()).st_ino for end in (one, other)}
        assert own <= set(links._sockets(os.getpid()))
        mine = [c for c in links._connections(socket.AF_INET) if c[0] in own]
        found = links._Sum()
        for _, here, there, info in mine:
            assert here == there == "127.0.0.1"
            found.add(info)
    assert len(mine) == 2
    assert found.packets >= 1
    assert links.peers_of(os.getpid()).keys().isdisjoint({"127.0.0.1"})


def test_a_lossy_link_is_named_while_it_lasts(clock):
    bad = (50, 1, 10**6, 1, 0, 0), (100, 5, 3 * 10**6, 2, 0, 0), (150, 8, 4 * 10**6, 3, 0, 0)
    said = reported(clock, (0, 0, 0, 0, 0, 0), *bad, planned=1e8)
    assert said[:2] == [[], []]
    assert said[2] == [
        "autoddl: the link from 10.0.1.2 to 10.0.2.2 loses packets: 5 of 100 in 30 s were sent "
        "again (5.0%); it carries 1.5 MB/s, planned are 100"
    ]
    assert said[3] == []  # once a minute
    steady = [(100 + n, 5, 0, 0, 0, 0) for n in range(40)]
    said = reported(clock, (0, 0, 0, 0, 0, 0), (100, 5, 0, 0, 0, 0), *steady)
    lines = [line for lines in said for line in lines]
    assert len(lines) == 2 and lines[1].endswith("is as planned again")


def test_a_slow_link_is_named(clock):
    slow = [(100 * n, 0, n * 10**6, n, 0.0, 1e6) for n in range(10)]
    assert any("is slow; it carries 1 MB/s, planned are 100" in line
               for lines in reported(clock, *slow, planned=1e8) for line in lines)  # fmt: skip
    assert not any(reported(clock, *slow, planned=3e6))  # half as fast is no fault
    assert not any(reported(clock, *slow))  # before there is a plan
    idle = [(100, 0, 0, 0, 0.0, 1e6)] * 10
    assert not any(reported(clock, *idle, planned=1e8))  # nothing is sent
    words = [(100 * n, 0, n * 10**4, n, 0.0, 1e6) for n in range(10)]
    assert not any(reported(clock, *words, planned=1e8))  # behind the data of other links
    few = [(100 * n, 0, n * 10**6, n, 0.0, 0.0) for n in range(10)]
    assert not any(reported(clock, *few, planned=1e8))  # the sender never filled the link


def test_one_who_gets_no_answer_is_known(clock):
    found = Links()
    assert found.stuck() is None
    found.note(*ENDS, {THERE: [9, 3, 0, 0, 4.0, 0.0], "10.0.3.2": [9, 0, 0, 0, 0.0, 0.0]})
    found.note(2, "10.0.2.2", {"10.0.3.2": [9, 3, 0, 0, 2.0, 0.0]})
    assert found.stuck() == Stuck(1, THERE, 4.0)
    found.note(*ENDS, {THERE: [9, 3, 0, 0, 0.0, 0.0]})
    assert found.stuck() == Stuck(2, "10.0.3.2", 2.0)
