"""Simulates a resharding plan move by move, with messages sharing the bandwidth of the links.

The load-balancing problem (`load.py`, AlpaComm Eqs. 1-3) gives a task whole links for as long as it
lasts. In execution, each device goes through its moves in the plan's order, a move starts when both
its devices have reached it, and messages that cross a NIC at the same time share its bandwidth 1 /
beta: a message out of host a into host b, while a sends n_a and b receives n_b messages, proceeds
at 1 / (beta max(n_a, n_b)) after its latency. `shared_seconds` simulates this. It prices plans
whose tasks overlap or wait for one another in ways that the load-balancing problem does not model;
`benchmarks/box/reshard.py` compares both with measured times.
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
    """The end of the last move if moves are issued in this order."""
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
    """Start each move that is first in the queues of both its devices."""
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
    """Bytes per second of each running move. inter, intra: seconds per byte"""
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
