"""By which shares tensors are divided among hosts that are not alike.

A plan at given shares is found by one search, which knows of each operator what the slowest kind of
devices takes (`cost.operators.Divided`). Shares in proportion to the speed of the devices balance
what is divided; even shares fill up no collective, whose pieces are as large as the largest
(`Mesh.padding`); the best lie between, the nearer to even the more is communicated (HAP, Zhang et
al., EuroSys 2024, section 2.4 and Fig. 2). So, as in HAP (section 3.1), the two are sought in
turns: strategies at given shares by a search, and the shares at which these strategies take least
(`better_shares`), at which is searched again, until no new shares come up.

Even and proportional shares are always tried, those by which experts are divided whole, as near to
proportional as these allow, and those in proportion to the memory of the devices where that
differs; the fastest plan of all is taken. Where the even one is, or nothing fits, the turns begin
again halfway between even and proportional shares (`starts`). Where proportional shares do not fit,
or the fastest plan is short of memory, the shares at which its strategies just fit are tried, and
others around: halfway to those that are known and as far beyond, as other strategies fit there. So
it is for a stage of a pipeline, too, whose shares are those with which the pipeline is fastest.

The shares at which given strategies take least are exact, in whole units, for up to three kinds. Of
a plan, what each operator takes and what is communicated is known at any shares (`Strategies`).
What a step takes depends only on the largest run of each kind of hosts and grows with it, so that
is what is chosen: for kinds k with n_k runs each, u units in all and m_k for the largest run,

    minimise    sum_i max_k f_ik(m_k / u) + b max_k m_k / u + c
    such that   sum_k n_k m_k >= u,   1 <= m_k <= the room of k

with f the seconds of the operators that are alike, and the room what memory has, which is affine
in m_k (`_room`). Three kinds at a time share anew what they have, all ways tried, until no three
gain. HAP (Eq. 3) solves this as a linear program in parts of the whole; HiGHS takes 2 ms for that,
where all ways for three kinds and 24 units take 0.4 ms and need no rounding nor straight lines.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Cluster, Device
from ..cost.account import divided_by
from ..cost.operators import Divided, compute_seconds, speeds, times_of
from ..cost.recompute import Recomputation
from ..graph.demands import op_experts
from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..plans.figures import figures
from ..plans.plan import Plan
from ..plans.stage_figures import stage_figures
from ..sbp.signature import find_rule

Array = NDArray[np.float64]
Shares = tuple[int, ...]
Found = TypeVar("Found")
_HALFWAY = 0.5  # as a power of the speed; of 40 small models it made one 0.8 % faster
# Searches at most. 3 and 14 gave the same plans of a small GPT on 2 kinds of hosts and VGG13 on 4.
TRIES = 7
# Of the whole, by which shares differ: nothing in between is tried. With 0.06, and nothing beyond,
# 68 MLPs in little memory on unlike hosts took 0.3 % longer.
_NEAR = 0.04
# A finer division of the rows counts only if it gains so much of the time: it fits fewer dims.
# 0.001 and 0.004, and 32 and 128 units below, gave the same plans of the two, as fast.
_WORTH = 0.002
# Kinds whose units change together: 2,000 ways to share 64 units, 10 ms for a model of 100 unlike
# operators. With 2 VGG13 on four kinds took 6 % longer; with 4 the same, planned 1.15 times as
# long.
_AT_ONCE = 3
_MOST_UNITS = 64  # of which shares are made: 1.6 % of the whole


@dataclass(frozen=True)
class Loads:
    """What a step takes by what one run of hosts of each kind gets, in units of the whole.

    compute_s: of operators that are alike, for each kind with 1, 2, ... units; rank 3
    base_s:    of communication whatever the shares, and of what is not divided
    largest_s: of communication by the largest share: so much for all of the whole
    runs:      of each kind
    room:      the most units that a run of each kind has memory for
    """

    compute_s: Array
    base_s: float
    largest_s: float
    runs: tuple[int, ...]
    room: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.compute_s.shape[1] == len(self.runs) == len(self.room)
        assert self.units >= sum(self.runs)

    @property
    def units(self) -> int:
        return self.compute_s.shape[2]

    def seconds(self, most: Array) -> Array:
        """Seconds of a step for each row of `most`, the most units of a run of each kind.

        Infinite where these do not fit, or are fewer than all.
        """
        each = self.compute_s[:, np.arange(len(self.runs)), most.astype(int) - 1]
        largest = most.max(axis=1) / self.units
        seconds = each.max(axis=2).sum(axis=0) + self.base_s + self.largest_s * largest
        fits = (most <= self.room).all(axis=1) & (most @ np.array(self.runs) >= self.units)
        return np.where(fits, seconds, np.inf)

    def best(self) -> tuple[tuple[int, ...], float]:
        """For each kind of hosts the units of its largest run; the seconds of the step."""
        runs = np.array(self.runs)
        even = -(-self.units // sum(self.runs))
        most = np.clip(self.room, 1, even)
        least_s = float(self.seconds(most[None])[0])
        is_better = True
        while is_better:
            is_better = False
            for few in itertools.combinations(range(len(runs)), min(_AT_ONCE, len(runs))):
                chosen = list(few)
                rest = self.units - int(runs @ most) + int(runs[chosen] @ most[chosen])
                split = _splits(tuple(self.runs[n] for n in few), rest)
                ways = np.repeat(most[None], len(split), axis=0)
                ways[:, chosen] = split
                seconds = self.seconds(ways)
                at = int(seconds.argmin())
                if seconds[at] < least_s * (1 - 1e-12):
                    most, least_s, is_better = ways[at], float(seconds[at]), True
        return tuple(int(n) for n in most), least_s


def _splits(runs: Sequence[int], units: int) -> NDArray[np.int64]:
    """At most so many units for a run of each kind, in all ways; the last takes what is left.

    Runs of a kind need not have equally many, so all together may have room for more.
    """
    if len(runs) == 1:
        return np.array([[max(-(-units // runs[0]), 1)]])
    first = [np.arange(1, max(units, 1) + 1)] * (len(runs) - 1)
    ways = np.stack(np.meshgrid(*first, indexing="ij"), axis=-1).reshape(-1, len(first))
    last = np.maximum(-(-(units - ways @ np.array(runs[:-1])) // runs[-1]), 1)
    return np.column_stack([ways, last])


@dataclass(frozen=True)
class _Alike:
    """So many operators of `graph` that are like `op`, each done `passes` times forward.

    at: how `op` is divided where a run gets `largest` of the whole
    """

    graph: Graph
    op: Op
    passes: int
    at: Divided
    largest: float
    count: int

    def seconds(self, device: Device, parts: Array) -> Array:
        """Seconds of a micro-batch on a device, for each part of the whole that its run gets."""
        graph, op, at = self.graph, self.op, self.at
        spec, rule = graph.spec(op), find_rule(op.kind)
        assert rule is not None, f"{op.name} has no rule"
        share = at.share * self.largest / parts if at.by_first[0] else at.share + 0 * parts
        moved = at.moved_bytes + at.first_moved_bytes * (parts / self.largest - 1)
        times = times_of(device, graph, op)
        has_grad = any(name in graph.needs_grad for name in op.outputs)
        forward_s = compute_seconds(spec, rule, device, share, moved, False, times)
        both_s = compute_seconds(spec, rule, device, share, moved, has_grad, times)
        return self.count * (both_s + (self.passes - 1) * forward_s)


@dataclass(frozen=True)
class Strategies:
    """The strategies of a plan of one mesh with shares, priced at any shares.

    groups: for each run of hosts that has a share, the group that it belongs to
    """

    alike: tuple[_Alike, ...]
    devices: tuple[Device, ...]
    groups: tuple[int, ...]
    base_s: float
    largest_s: float

    @staticmethod
    def of(plan: Plan) -> Strategies:
        stage, mesh, graph = plan.stage, plan.stage.mesh, plan.stage.graph
        assert mesh.shares, "only uneven shares have an axis of their own"
        work = [n for n, share in enumerate(mesh.shares) if share]  # others have none at any
        even = tuple(int(share > 0) for share in mesh.shares)
        even_s = figures(plan.at_shares(even)).cost.exposed_s
        here_s = figures(plan).cost.exposed_s
        largest = max(mesh.shares) / sum(mesh.shares)
        slope = (here_s - even_s) / (largest - 1 / len(work))
        hosts = mesh.nodes // len(mesh.shares)  # of a run
        groups = tuple(plan.cluster.group_of(n * hosts) for n in work)
        devices = tuple(plan.cluster.device_of(group) for group in dict.fromkeys(groups))
        measured = any(device.operators for device in devices)
        again = Recomputation(graph, stage.recomputed)
        found: dict[Hashable, _Alike] = {}
        for op in graph.ops:
            if op.kind in SOURCE_KINDS or op.name in graph.free_ops:
                continue
            placed, passes = stage.ops[op.name], again.passes(op.name)
            key: Hashable = op.name
            if op.kind != "opaque" and not measured:
                has_grad = any(name in graph.needs_grad for name in op.outputs)
                spec, attrs = graph.spec(op), tuple(sorted(op.attrs.items()))
                key = op.kind, attrs, spec.inputs, spec.outputs, placed, has_grad, passes
            if key in found:
                found[key] = replace(found[key], count=found[key].count + stage.micro_batches)
            else:
                at = divided_by(graph, mesh, op, placed)
                found[key] = _Alike(graph, op, passes, at, largest, stage.micro_batches)
        alike = tuple(found.values())
        return Strategies(alike, devices, groups, here_s - slope * largest, slope)

    def loads(self, units: int, room: Sequence[float] = ()) -> Loads:
        """The loads with the whole divided into so many units.

        room: the part of the whole that a run of each kind has memory for; () for all of it
        """
        parts = np.arange(1, units + 1) / units
        compute_s = np.array([[a.seconds(d, parts) for d in self.devices] for a in self.alike])
        runs = tuple(Counter(self.groups).values())
        most = tuple(math.floor(part * units) for part in room or (1.0,) * len(runs))
        return Loads(compute_s, self.base_s, self.largest_s, runs, most)


def better_shares(plan: Plan, rows: int, limit_bytes: float = math.inf) -> tuple[int, ...]:
    """At which the strategies of a plan with uneven shares take least; their sum divides `rows`.

    Of the runs of hosts that have a share. () if they fit nowhere.

    limit_bytes: of the devices with the least memory, the others have more in proportion
    """
    strategies = Strategies.of(plan)
    kinds = list(dict.fromkeys(strategies.groups))
    room = _room(plan, strategies.devices, limit_bytes)

    def of_units(units: int) -> tuple[Shares, float]:
        most, seconds = strategies.loads(units, room).best()
        return filled([most[kinds.index(group)] for group in strategies.groups], units), seconds

    return _divided(len(strategies.groups), rows, of_units)


def _room(plan: Plan, devices: Sequence[Device], limit_bytes: float) -> tuple[float, ...]:
    """The part of the whole that a run of hosts of each kind has memory for; () if all.

    What a device needs is taken to be affine in its part, as what is divided is. Of a small part,
    where another moment is the fullest, it is up to 7 % more: then the search finds another plan.
    """
    if limit_bytes == math.inf:
        return ()
    needed, shares = stage_figures(plan.stage).needed_by, plan.stage.mesh.shares
    large = max(shares) / sum(shares)
    small = large / 2
    once = needed(small)
    each = max((needed(large) - once) / (large - small), 1.0)
    per_byte = limit_bytes / plan.cluster.memory_bytes
    free = [device.memory_bytes * per_byte - once + each * small for device in devices]
    return tuple(min(max(bytes_ / each, 0.0), 1.0) for bytes_ in free)


def _divided(
    runs: int, rows: int, of_units: Callable[[int], tuple[Shares, float]], most: int = _MOST_UNITS
) -> Shares:
    """The shares of the coarsest division of `rows` that none finer betters by `_WORTH`.

    of_units: shares of so many units in all, and what to compare
    """
    found: Shares = ()
    least = math.inf
    for units in range(max(runs, 2), min(rows, most) + 1):
        if rows % units:
            continue
        shares, value = of_units(units)
        if value < least * (1 - _WORTH):
            found, least = shares, value
    common = math.gcd(*found) if found else 1
    return tuple(share // common for share in found)


def filled(most: Sequence[int], units: int) -> tuple[int, ...]:
    """Shares of so many units in all, of each run at most so many and at least one."""
    shares = list(most)
    while sum(shares) > units:
        last = max(range(len(shares)), key=lambda n: (shares[n] > 1, shares[n] / most[n], n))
        shares[last] -= 1
    return tuple(shares)


def starts(cluster: Cluster, graph: Graph) -> tuple[tuple[float, ...], ...]:
    """What runs of hosts may want of the whole: by speed, by memory, halfway to even."""
    speed = speeds(cluster, graph)
    memory = tuple(float(cluster.device_of(group).memory_bytes) for group in cluster.runs)
    by_memory = (memory,) if len(set(memory)) > 1 else ()
    return speed, *by_memory, tuple(v**_HALFWAY for v in speed)


def by_experts(cluster: Cluster, graph: Graph) -> tuple[Shares, ...]:
    """Shares near to the speeds that divide experts whole, also among the devices of a run.

    At 47:17, which the turns found, 16 experts were copied; 3:1 of them takes 0.81 of the time.
    """
    found: dict[Shares, None] = {}
    counts = {op_experts(graph, op) for op in graph.ops} - {0}
    if not counts:
        return ()
    wanted, rows = speeds(cluster, graph), divided_rows(cluster, graph.batch)
    each = cluster.num_devices // len(cluster.runs)
    for experts in counts:
        for units in (experts // math.gcd(experts, each), experts):
            shares = whole_shares(wanted, math.gcd(rows, units))
            found.update(dict.fromkeys([shares] if len(set(shares)) > 1 else []))
    return tuple(found)


def divided_rows(cluster: Cluster, batch: int) -> int:
    """How finely runs of hosts can share the rows: the devices of a run divide its own further."""
    devices = cluster.num_devices // len(cluster.runs)
    rows = batch // math.gcd(batch, devices)
    return rows if rows >= len(cluster.runs) else batch


def proportional_shares(cluster: Cluster, graph: Graph) -> Shares:
    """Whole ones near to the speeds of the runs of hosts; () if these are alike."""
    return _told(whole_shares(speeds(cluster, graph), divided_rows(cluster, graph.batch)))


def whole_shares(wanted: Sequence[float], rows: int, each: int = 0) -> Shares:
    """Whole shares, each at least 1, that come near to those wanted; their sum divides `rows`.

    Near: the run whose share is largest, compared with what it wants, has little more than that.
    `rows` is divided no finer than that is worth.

    each: units of a run, where there may be so many of each, however many runs there are
    """
    total = sum(wanted)

    def of_units(units: int) -> tuple[Shares, float]:
        shares = _rounded([w * units / total for w in wanted], units)
        return shares, max(s / units / (w / total) for s, w in zip(shares, wanted, strict=True))

    return _divided(len(wanted), rows, of_units, max(_MOST_UNITS, each * len(wanted)))


def _rounded(wanted: Sequence[float], units: int) -> Shares:
    """Units to each by what it wants, at least one: one by one to whom it is least too much."""
    shares = [max(1, math.floor(w + 1e-9)) for w in wanted]
    while sum(shares) > units:
        shares[max(range(len(shares)), key=lambda n: (shares[n] > 1, shares[n] / wanted[n]))] -= 1
    while sum(shares) < units:
        shares[min(range(len(shares)), key=lambda n: (shares[n] + 1) / wanted[n])] += 1
    return tuple(shares)


def best_shares(
    at: Callable[[Shares, float], Found | None],
    seconds: Callable[[Found], float],
    better: Callable[[Found, float], Shares],
    starts: Sequence[Sequence[float]],
    rows: int,
    also: Sequence[Shares] = (),
    limit_bytes: Callable[[Found], float] = lambda _: math.inf,
) -> tuple[Shares | None, dict[Shares, Found]]:
    """The shares whose plan is fastest (None: none fits), and all plans that were found.

    at:     the plan at given shares, None if nothing that takes less than so many seconds fits
            there; () stands for even ones
    better: the shares at which the strategies of a plan take least, within a limit of memory
    starts: of the turns; the last where those before it came to no better than even ones
    also:   tried after the turns of the first start, by themselves
    limit_bytes: of memory, if that is short for a plan
    """
    found: dict[Shares, Found | None] = {}

    def least_s() -> float:
        return min((seconds(plan) for plan in found.values() if plan is not None), default=math.inf)

    def tried(shares: Shares) -> None:
        if shares not in found and len(found) < TRIES:
            found[shares] = at(shares, least_s())

    def turns(shares: Shares) -> None:
        """From a start, whose plan need not be the fastest, as long as each is the fastest yet."""
        last, below_s = None, math.inf
        while shares and shares not in found and len(found) < TRIES:
            plan = found[shares] = at(shares, below_s)
            if plan is None:
                break
            last, below_s = plan, least_s()
            shares = _told(better(plan, math.inf))
        if last is not None and limit_bytes(last) < math.inf:
            tried(_told(better(last, limit_bytes(last))))

    first = _told(whole_shares(starts[0], rows))
    for number, wanted in enumerate(starts[:-1] or starts):
        turns(_told(whole_shares(wanted, rows)))
        for shares in also if number == 0 else ():
            tried(shares)
    tried(())
    if not _fastest(found, seconds):
        turns(_told(whole_shares(starts[-1], rows)))
    while len(found) < TRIES:
        fastest = _fastest(found, seconds)
        plan = None if fastest is None else found[fastest]
        if fastest is None or plan is None or found[first] and limit_bytes(plan) == math.inf:
            break
        near = _near(fastest, [shares for shares in found if shares != fastest], starts[0], rows)
        if near is None:
            break
        tried(near)
    plans = {shares: plan for shares, plan in found.items() if plan is not None}
    return _fastest(plans, seconds), plans


def _near(
    shares: Shares, others: Sequence[Shares], wanted: Sequence[float], rows: int
) -> Shares | None:
    """The nearest shares that are halfway to others, or as far beyond; None: all are known."""

    def parts(own: Shares) -> Array:
        return np.array(own or (1.0,) * len(wanted)) / (sum(own) or len(wanted))

    def between(one: Array, other: Array) -> float:
        return float(np.abs(one - other).sum())

    here = parts(shares)
    ways = [here + (parts(o) - here) * by for o in others for by in (0.5, -1.0)]
    for way in sorted((w for w in ways if w.min() > 0), key=lambda w: between(w, here)):
        found = _told(whole_shares(way.tolist(), rows))
        if min(between(parts(found), parts(o)) for o in (shares, *others)) > _NEAR:
            return found
    return None


def _fastest(
    plans: Mapping[Shares, Found | None], seconds: Callable[[Found], float]
) -> Shares | None:
    taken = {shares: seconds(plan) for shares, plan in plans.items() if plan is not None}
    return min(taken, key=lambda shares: (taken[shares], shares), default=None)


def _told(shares: Shares) -> Shares:
    """() for equal ones."""
    return shares if len(set(shares)) > 1 else ()
