"""Seconds of a resharding plan if its messages share the links, move by move.

The scheduling problem (`load.py`, AlpaComm Eqs. 1-3) gives a task whole links for as long as it
lasts. What runs is less orderly: each device goes through its moves in the plan's order, a move
starts when both its devices have come to it, and the messages that cross a NIC at one time share
its bandwidth 1 / beta: a message out of host a into host b, of which a has n_a going out and b has
n_b coming in, proceeds at 1 / (beta max(n_a, n_b)) after its latency. `shared_seconds` plays that.
It tells what routes take whose tasks overlap or wait for one another in ways that the scheduling
problem does not see; `benchmarks/box/reshard.py` compares both with the measured time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from ...cluster.spec import Cluster
from ...cluster.submesh import Device
from .strategies import Move
from .unit_tasks import UnitTask


def shared_seconds(ordered: Iterable[tuple[UnitTask, Move]], cluster: Cluster) -> float:
    """Until the last move has ended, if they are issued in this order."""
    queues: dict[Device, deque[int]] = {}
    moves = []
    for number, (task, move) in enumerate(ordered):
        moves.append((move.sender, move.receiver, (move.stop - move.start) * task.item_bytes))
        for device in (move.sender, move.receiver):
            queues.setdefault(device, deque()).append(number)
    inter, intra = cluster.inter, cluster.intra
    now = 0.0
    latency: dict[int, float] = {}  # running moves that carry no bytes yet: when they begin to
    left: dict[int, float] = {}  # bytes of those that do
    _start(set(queues), queues, moves, cluster, latency, now)
    while latency or left:
        rates = _rates(left, moves, inter.beta_s_per_byte, intra.beta_s_per_byte)
        step = min(
            min((left[n] / rates[n] for n in left), default=math.inf),
            min(latency.values(), default=math.inf) - now,
        )
        now += step
        for n in left:
            left[n] -= step * rates[n]
        for n in [n for n, begin in latency.items() if begin <= now * (1 + 1e-12)]:
            del latency[n]
            left[n] = float(moves[n][2])
        ended = [n for n in left if left[n] <= 1e-9 * moves[n][2]]
        free: set[Device] = set()
        for n in ended:
            del left[n]
            for device in moves[n][:2]:
                queues[device].popleft()
                free.add(device)
        _start(free, queues, moves, cluster, latency, now)
    assert not any(queues.values()), "the plan's moves wait for one another"
    return now


def _start(
    free: set[Device],
    queues: dict[Device, deque[int]],
    moves: list[tuple[Device, Device, int]],
    cluster: Cluster,
    latency: dict[int, float],
    now: float,
) -> None:
    """Begin what stands first with both its devices."""
    for device in sorted(free):
        if not queues[device]:
            continue
        n = queues[device][0]
        sender, receiver, _ = moves[n]
        if n not in latency and queues[sender][0] == queues[receiver][0] == n:
            link = cluster.intra if sender[0] == receiver[0] else cluster.inter
            latency[n] = now + link.transfer_latency_s


def _rates(
    left: dict[int, float], moves: list[tuple[Device, Device, int]], inter: float, intra: float
) -> dict[int, float]:
    """Bytes a second of each running move. inter, intra: seconds a byte"""
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    for n in left:
        (a, _), (b, _), _ = moves[n]
        if a != b:
            out[a] = out.get(a, 0) + 1
            into[b] = into.get(b, 0) + 1
    return {
        n: 1 / (inter * max(out[a], into[b])) if a != b else 1 / intra
        for n in left
        for (a, _), (b, _) in (moves[n][:2],)
    }
