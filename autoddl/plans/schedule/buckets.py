"""In which buckets gradients travel together (`cost.exchange`).

A bucket leaves when the last of its gradients is there, and the communication queue is free: many
small ones leave early and pay many latencies, few large ones leave late. With the gradients in the
order in which they are ready, at r_1 <= r_2 <= ..., the earliest end of the first j of them is

    end(j) = min over i < j of  max(end(i), r_j) + seconds(i+1 .. j),    end(0) = 0

as what comes after can only gain by an earlier end. Many choices end nearly as early; of these the
one is taken that makes, from the last gradient on, the longest runs: it sends the least. Gradients
that cannot travel together make several buckets of a run. The runs are exact where no collective
stands between them; one that does waits for them, which the simulator prices. So shorter runs and
one bucket for all that can travel together are tried as well.

A gradient's way is the best for it alone: of a small one that of few latencies, of a large one that
of few bytes. In a bucket one pays for all, so gradients of one all-reduce may as well all take the
way of some of them, and travel together (`on_one_way`).

Where collectives stand between them, a bucket may wait (`best_waits`): for a stretch of computation
long enough that it is over, or over but for a share of it, before the next collective.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost.exchange import Bucketed, Buckets, Exchange, Waits, filling, on_dims
from ...sbp.collectives import Step
from ...sbp.layout import is_even
from ...sbp.mesh import Mesh
from ...sbp.placement import S
from .passes import Course
from .step import StepMaker

# 1 and 6 limits gave the same steps of VGG13 on 16 and of a small GPT on 2x2 devices, as fast.
_SHORTER = 3  # limits of a run's seconds that are tried, each a 16th of the one before
# Of the end: so much later is as good, if fewer collectives do. With 0 VGG13's step on 16 devices
# is 0.03 % faster, with twice 0.07 % slower; a small GPT's on 2x2 0.02 % faster, and the same.
_LATE = 1e-3
# Of a bucket, how much must fit beside what computes. Of 0.25, 0.5, 0.8 and 1 a step of GPT-3 175B
# on 128x8 ends first with 1 (0.91 of the time at once, 0.93 with 0.25), one of 32 blocks on 64x4
# with 0.25 (0.97; 1.06 with the others), and of one block with any of them (0.91).
_FITTING = (0.25, 0.5, 1.0)


def on_one_way(maker: StepMaker) -> StepMaker:
    """The step whose gradients of one all-reduce take one way, where that is sooner in one bucket.

    `maker` itself where none does. In several buckets it need not be sooner: of EfficientNet on 2x8
    the step takes 0.4 % longer. Gradients that travel for each micro-batch keep their ways. On
    machines as they are measured a small one mostly takes another way than a large one: data
    parallelism of the race's models on 2 hosts of 2 processes then communicates for 0.82 to 0.91 of
    the time, by their prices.
    """
    every, edges = maker.exchanges, dict(maker.edges)
    alike: dict[Hashable, list[int]] = {}
    for number, one in enumerate(every):
        axes = frozenset(axis for step in one.steps for axis in step.axes)
        if one.is_all_reduce and not one.is_often:
            alike.setdefault((one.spec.dtype, axes), []).append(number)
    for numbers in alike.values():
        apart: dict[Hashable, list[int]] = {}
        for n in numbers:
            apart.setdefault(every[n].company, []).append(n)
        if len(apart) == 1:
            continue
        found, least_s = (), sum(map(maker.bucket_s, apart.values()))
        for example in (every[own[0]] for own in apart.values()):
            ways = [_along(every[n], example.steps, maker.model.cluster.mesh) for n in numbers]
            together = tuple(way for way in ways if way is not None)
            if len(together) < len(numbers):
                continue
            seconds = maker.bucket_s_along(numbers, together)
            if seconds < least_s:
                found, least_s = together, seconds
        for n, steps in zip(numbers if found else (), found, strict=True):
            edges[every[n].key] = replace(edges[every[n].key], backward=steps)
    return maker if edges == maker.edges else replace(maker, edges=edges)


def _along(one: Exchange, steps: tuple[Step, ...], mesh: Mesh) -> tuple[Step, ...] | None:
    """These steps of another gradient's all-reduce, for `one`; None if it cannot take them.

    What is split meanwhile is a dim of its own. Steps that split twice are left to those gradients
    whose own way they are: most others, such as biases, have no two dims.
    """
    splits = [step for step in steps if step.target.is_split]
    if not splits:
        return steps
    if len(splits) > 1:
        return None
    for dim in range(len(one.spec.shape)):
        split = one.given.replace(splits[0].axes, S(dim))
        if dim not in one.given.split_dims() and is_even(one.spec.shape, split, mesh):
            return on_dims(steps, lambda axis, dim=dim: dim)
    return None


def best_buckets(maker: StepMaker) -> Buckets:
    """The buckets with which the step ends first; () if nothing travels."""
    every = maker.exchanges
    if not every:
        return ()
    ready = [maker.ready_s[n] for n in range(len(every))]
    order = sorted(range(len(every)), key=lambda n: (ready[n], -n))
    companies = [exchange.company for exchange in every]
    most = [math.inf, *(maker.exchange_s / 16**n for n in range(1, _SHORTER))]
    tried = {earliest_runs(order, ready, maker.prices, companies, most_s) for most_s in most}
    tried.add(_together(companies, order, [len(order)]))
    passes = _passes(maker)
    end_s = {buckets: maker.end_s(buckets, passes) for buckets in sorted(tried)}
    early = [b for b, seconds in end_s.items() if seconds <= min(end_s.values()) * (1 + _LATE)]
    return min(early, key=lambda buckets: (len(buckets), end_s[buckets]))


def best_travel(maker: StepMaker) -> tuple[float, Bucketed]:
    """When a step of as few micro-batches as tell it ends, its best buckets, and how they wait."""
    buckets = best_buckets(maker)
    waits = best_waits(maker, buckets)
    return maker.end_s(buckets, _passes(maker), waits), (buckets, waits)


def _passes(maker: StepMaker) -> int:
    """Passes before the last one are alike if nothing travels in them."""
    return min(maker.micro_batches, 1 + any(exchange.is_often for exchange in maker.exchanges))


def best_waits(maker: StepMaker, buckets: Buckets) -> Waits:
    """By how many operators' backward passes each bucket waits so that the step ends first.

    () if none does, or hardly anything is gained.
    """
    _, backward = maker.courses
    if not buckets or not any(own.before or own.after for own in backward.stretches):
        return ()
    every, passes = maker.exchanges, _passes(maker)
    full = filling(maker.graph, every, buckets)
    travels = [not maker.graph.gives_back or every[bucket[0]].is_often for bucket in buckets]
    seconds = [maker.bucket_s(b) if t else 0.0 for b, t in zip(buckets, travels, strict=True)]
    best, best_s = (), maker.end_s(buckets, passes) * (1 - _LATE)
    for share in _FITTING:
        places = _fitting(backward, full, seconds, share)
        waits = tuple(late - place for late, place in zip(places, full, strict=True))
        end_s = maker.end_s(buckets, passes, waits)
        if end_s < best_s:
            best, best_s = waits, end_s
    return best


def _fitting(
    course: Course, full: Sequence[int], seconds: Sequence[float], share: float
) -> list[int]:
    """Behind which operator's backward pass each bucket leaves if `share` of it has to fit.

    full, seconds: behind which it is full, and how long it takes
    """
    stretches = course.stretches
    beside_s = [0.0] * (len(stretches) + 1)  # from a stretch on, up to the next collective
    for n in reversed(range(len(stretches))):
        own = stretches[n]
        goes_on = not own.after and n + 1 < len(stretches) and not stretches[n + 1].before
        beside_s[n] = own.computing + (beside_s[n + 1] if goes_on else 0.0)
    place_of = {stretch: place for place, stretch in course.closes.items()}
    found: list[int] = []
    busy_s = 0.0  # of what has left, beside the stretches that follow
    for n, own in enumerate(stretches):
        busy_s = max(0.0, (0.0 if own.before else busy_s) + own.ahead - own.computing)
        busy_s = 0.0 if own.after else busy_s
        room_s = 0.0 if n + 1 == len(stretches) or stretches[n + 1].before else beside_s[n + 1]
        place = place_of.get(n, -1)
        while len(found) < len(full) and full[len(found)] <= place:
            own_s = seconds[len(found)]
            if busy_s + share * own_s > room_s and n + 1 < len(stretches):
                break
            busy_s += own_s
            found.append(place)
    last = max(course.closes)
    return found + [last] * (len(full) - len(found))


def earliest_runs(
    order: Sequence[int],
    ready: Sequence[float],
    prices: Sequence[tuple[float, float]],
    companies: Sequence[Hashable],
    most_s: float = math.inf,
) -> Buckets:
    """The dynamic program of the module's docstring, in O(n^2) steps on arrays.

    order: the gradients as they are ready, at `ready`; prices: (seconds of latency, further ones)
    companies: equal for those that may travel together
    most_s:    that a run of several may take
    """
    last_of: dict[Hashable, int] = {}
    own_s = np.zeros(len(order))  # of those before j: own bytes, and the latency if last of a kind
    end_s = np.zeros(len(order) + 1)
    runs_s: list[NDArray[np.float64]] = []  # [j][i] of the run i .. j
    for j, number in enumerate(order):
        before = last_of.get(companies[number])
        if before is not None:
            own_s[before] -= prices[order[before]][0]
        last_of[companies[number]] = j
        own_s[j] = sum(prices[number])
        run_s = np.cumsum(own_s[j::-1])[::-1]
        run_s[:-1][run_s[:-1] > most_s] = math.inf
        runs_s.append(run_s)
        end_s[j + 1] = (np.maximum(end_s[: j + 1], ready[number]) + runs_s[j]).min()
    cuts, at, latest_s = [], len(order), end_s[-1] * (1 + _LATE)
    while at:
        cuts.append(at)
        run_s = runs_s[at - 1]
        starts = np.maximum(end_s[:at], ready[order[at - 1]])
        at = int((starts + run_s <= latest_s).argmax())
        latest_s -= run_s[at]
    return _together(companies, order, cuts[::-1])


def _together(companies: Sequence[Hashable], order: Sequence[int], cuts: Sequence[int]) -> Buckets:
    """Of each run, up to a cut, the gradients that may travel together as a bucket."""
    found: list[tuple[int, ...]] = []
    start = 0
    for cut in cuts:
        run: dict[Hashable, list[int]] = {}
        for number in order[start:cut]:
            run.setdefault(companies[number], []).append(number)
        found += [tuple(members) for members in run.values()]
        start = cut
    return tuple(found)
