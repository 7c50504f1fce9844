"""By which shares tensors are divided among hosts that are not alike.

A plan at given shares is found by one search, which knows of each operator what the slowest kind of
devices takes (`cost.operators.Divided`). Shares in proportion to the speed of the devices balance
what is divided; even shares fill up no collective, whose pieces are as large as the largest
(`Mesh.padding`); the best lie between, the nearer to even the more is communicated (HAP, Zhang et
al., EuroSys 2024, section 2.4 and Fig. 2). So shares are sought along the line

    share of a run of hosts  ~  speed ** t,      t = 0: even,   t = 1: in proportion

by a golden-section search, each t rounded to whole shares whose sum divides the rows of the batch.
Even and proportional shares are always tried, and the fastest plan of all is taken, so it is never
slower than the even one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ..cluster.spec import Cluster
from ..cost.operators import Divided
from ..graph.graph import SOURCE_KINDS, Graph

Shares = tuple[int, ...]
Found = TypeVar("Found")
_GOLDEN = (math.sqrt(5) - 1) / 2
# Both ends and five between: the last two t are 0.09 apart, 6 % of a share at twice the speed.
TRIES = 7
# A finer division of the rows counts only if the slowest run has so much less: it fits fewer dims.
_WORTH = 0.02
_MOST_UNITS = 64  # of which the shares are made: 1.6 % of the whole, as fine as _WORTH


def speeds(cluster: Cluster, graph: Graph) -> tuple[float, ...]:
    """How fast each run of hosts computes the model, the fastest 1."""
    seconds: list[float] = []
    for group in cluster.runs:
        alone = Cluster(cluster.name, 1, 1, cluster.device_of(group), cluster.intra, cluster.inter)
        seconds.append(sum(_seconds(alone, graph)))
    return tuple(min(seconds) / own for own in seconds)


def _seconds(alone: Cluster, graph: Graph) -> list[float]:
    """Of each operator on one device that has all of it."""
    found: list[float] = []
    for op in graph.ops:
        if op.kind in SOURCE_KINDS or op.name in graph.free_ops:
            continue
        spec = graph.spec(op)
        moved = sum(tensor.bytes for tensor in (*spec.inputs, *spec.outputs))
        whole = Divided(np.ones(1), np.array([float(moved)]), np.zeros(1, dtype=bool), np.zeros(1))
        has_grad = any(name in graph.needs_grad for name in op.outputs)
        found.append(float(whole.seconds(alone, graph, op, has_grad)[0]))
    return found


def divided_rows(cluster: Cluster, batch: int) -> int:
    """How finely runs of hosts can share the rows: the devices of a run divide its own further."""
    devices = cluster.num_devices // len(cluster.runs)
    rows = batch // math.gcd(batch, devices)
    return rows if rows >= len(cluster.runs) else batch


def whole_shares(wanted: Sequence[float], rows: int) -> Shares:
    """Whole shares, each at least 1, that come near to those wanted; their sum divides `rows`.

    Near: the run whose share is largest, compared with what it wants, has little more than that.
    `rows` is divided no finer than that is worth.
    """
    total = sum(wanted)
    found: Shares = ()
    least = math.inf
    for units in range(len(wanted), min(rows, _MOST_UNITS) + 1):
        if rows % units:
            continue
        shares = _rounded([w * units / total for w in wanted], units)
        most = max(s / units / (w / total) for s, w in zip(shares, wanted, strict=True))
        if most < least * (1 - _WORTH):
            found, least = shares, most
    common = math.gcd(*found) if found else 1
    return tuple(share // common for share in found)


def _rounded(wanted: Sequence[float], units: int) -> Shares:
    """Units to each by what it wants, at least one: one by one to whom it is least too much."""
    shares = [max(1, math.floor(w + 1e-9)) for w in wanted]
    while sum(shares) > units:
        shares[max(range(len(shares)), key=lambda n: (shares[n] > 1, shares[n] / wanted[n]))] -= 1
    while sum(shares) < units:
        shares[min(range(len(shares)), key=lambda n: (shares[n] + 1) / wanted[n])] += 1
    return tuple(shares)


def best_shares(
    at: Callable[[Shares], Found | None],
    seconds: Callable[[Found], float],
    speed: Sequence[float],
    rows: int,
) -> tuple[Shares | None, dict[Shares, Found]]:
    """The shares whose plan is fastest (None: none fits), and all plans that were found.

    at: the plan at given shares, None if nothing fits there; () stands for even ones
    """
    found: dict[Shares, Found | None] = {}

    def cost(t: float) -> float:
        shares = whole_shares([v**t for v in speed], rows) if t else ()
        shares = () if len(set(shares)) < 2 else shares
        if shares not in found:
            found[shares] = at(shares)
        plan = found[shares]
        return math.inf if plan is None else seconds(plan)

    ends = cost(0.0), cost(1.0)
    low, high = 0.0, 1.0
    if all(map(math.isfinite, ends)):
        inner = [1 - _GOLDEN, _GOLDEN]
        costs = [cost(t) for t in inner]
        for _ in range(TRIES - 4):
            worse = costs[0] < costs[1]
            low, high = (low, inner[1]) if worse else (inner[0], high)
            at_t = low + (1 - _GOLDEN if worse else _GOLDEN) * (high - low)
            inner = [at_t, inner[0]] if worse else [inner[1], at_t]
            costs = [cost(at_t), costs[0]] if worse else [costs[1], cost(at_t)]
    plans = {shares: plan for shares, plan in found.items() if plan is not None}
    best = min(plans, key=lambda shares: (seconds(plans[shares]), shares), default=None)
    return best, plans
