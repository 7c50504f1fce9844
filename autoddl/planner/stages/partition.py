"""Cuts a model's layers into pipeline stages on disjoint parts of the cluster.

A stage is a run of layers on whole hosts, or on one of equal parts of a host; together the stages
take all devices, in order. Where hosts are of several groups, these may follow one another in any
order: the hosts in use of each are counted (Whale, Jia et al., ATC 2022, section 3.3.2 puts groups
in the order of their memory instead). A stage has hosts of one group, or if it may (`Task.mixes`)
of two that are beside one another in the cluster, from where they meet on; one stage for each two.
With m micro-batches, for
stages i of t_i seconds a micro-batch (forward and backward), x_i seconds of transfers behind them
(activations and gradients) and y_i seconds once an iteration (sums of gradients),

    T = sum_i (t_i + x_i) + max_i ((m - 1) p_i + y_i)
    p_i = max(t_i, x_i)   if transfers run beside computation, else   t_i + x_i

the fill and drain of the pipeline plus the pace of its slowest stage: for equal stages this is
(m + s - 1) t, the closed form of `simulate`. For a bound on the pace, dynamic programming from the
last stage backwards gives the least sum; the bound starts at infinity, and is then each time just
below the pace of what was found, until no better T is possible (`tolerance` makes it fall faster).

    best(k, shape, l) = min over j, next of  cost(l, j, shape, next) + best(k - 1, next, j)

k, the stages from here to the end, decides how many micro-batches a stage holds (`in_flight`) and
so whether it fits the memory. Prices are given by the caller (`PriceFn`, `TransferFn`): in planning
they come from the SBP search on the stage's own mesh.

An interleaved pipeline has `chunks` parts on each stage (`interleaved_partition`). The stages are
equal parts of the cluster, whole hosts or equal parts of one, and part v lies on stage v mod s.
With s stages of c parts each, m micro-batches and t seconds a micro-batch of the slowest part
(forward and backward), an iteration takes about

    T = (m c + s - 1) t + y

(`simulate`), y being the most that the parts of a stage do once an iteration. So the cuts are those
with the least t: by dynamic programming, best(k, l) = min over j of max(t(l, j), best(k - 1, j)).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...plans.stage import StagePrice
from ...sbp.mesh import SubMesh
from .task import (
    Array,
    Cut,
    Cuts,
    Partition,
    PriceFn,
    Shape,
    Stage,
    Task,
    equal_shapes,
    in_flight,
    iteration_s,
    most_stages,
    nothing_fits,
    possible_shapes,
)

_ROUNDING = 1e-12  # relative


def partition(task: Task, micro_batch_counts: Sequence[int]) -> Partition:
    """The best partition over the numbers of stages and micro-batches.

    Raises ValueError if there are more stages than layers or devices, or nothing fits the memory.
    """
    return min(partitions(task, micro_batch_counts), key=lambda p: (p.seconds, len(p.stages)))


def partitions(task: Task, micro_batch_counts: Sequence[int]) -> list[Partition]:
    """The best partition of each number of stages and micro-batches that is possible."""
    most = most_stages(task)
    found: list[Partition] = []
    for micro_batches in micro_batch_counts:
        if task.schedule == "zb-h1":
            for stages in range(1, most + 1) if task.stages is None else (most,):
                search = _Search(task, micro_batches, stages, stages)
                found += [p for p in search.run() if len(p.stages) == stages]
        else:
            found += _Search(task, micro_batches, most, most).run()
        found = [p for p in found if task.stages in (None, len(p.stages))]
        if found and task.is_over():
            break
    if not found:
        raise ValueError(nothing_fits(task, micro_batch_counts))
    return found


@dataclass(frozen=True)
class _State:
    """Devices in use, from the end.

    hosts: whole ones of each group, and of one more of `group` so many `parts` of `gpus` each
    mixed: the first of two groups that share a stage
    """

    hosts: tuple[int, ...]
    gpus: int = 0
    parts: int = 0
    group: int = 0
    mixed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Entry:
    """Per first layer: the least sum, where the first stage ends, which entry of the row before."""

    value: Array
    ends: NDArray[np.int64]
    origins: NDArray[np.int64]

    def merged(self, other: _Entry) -> _Entry:
        better = other.value < self.value
        return _Entry(
            np.where(better, other.value, self.value),
            np.where(better, other.ends, self.ends),
            np.where(better, other.origins, self.origins),
        )


Choice = tuple[int, int, int]  # first layer, last layer + 1, shape number
Row = dict[tuple[_State, int], _Entry]


class _Search:
    """The dynamic program for one number of micro-batches."""

    def __init__(self, task: Task, micro_batches: int, most: int, stages: int) -> None:
        self.task = task
        self.micro_batches = micro_batches
        self.most = most
        self.shapes = possible_shapes(task, most)
        layers, count = task.layers, len(self.shapes)
        size = (layers, layers + 1)
        # per (stages from here to the end, shape): seconds of a micro-batch, and once
        self.times: dict[tuple[int, int], tuple[Array, Array]] = {}
        for behind in range(1, most + 1):
            held = in_flight(task.schedule, behind, stages, micro_batches)
            for s in range(count):
                key = (held, s)
                if key not in self.times:
                    self.times[key] = self._times(held, s)
        self.held = [0] + [
            in_flight(task.schedule, behind, stages, micro_batches) for behind in range(1, most + 1)
        ]
        self.transfers = np.zeros((count, count, *size))
        for s, t in np.ndindex(count, count) if most > 1 else ():
            self.transfers[s, t] = self._transfers(self.shapes[s], self.shapes[t])

    def _times(self, held: int, s: int) -> tuple[Array, Array]:
        """[first, last) -> t and y; inf where it does not fit."""
        layers = self.task.layers
        if self.task.times is not None:
            return self.task.times(self.shapes[s], self.micro_batches, held)
        each, once = np.full((2, layers, layers + 1), np.inf)
        for i, j in _runs(layers):
            price = self.task.price(i, j, self.shapes[s], self.micro_batches, held)
            limit = self.task.memory_limit_bytes * self.task.room(self.shapes[s])
            if price and price.memory_bytes(held) <= limit:
                each[i, j] = price.forward_s + price.backward_s
                once[i, j] = price.once_s
        return each, once

    def _transfers(self, shape: Shape, following: Shape) -> Array:
        """[first, last) -> x; nothing behind the last layer."""
        layers, task = self.task.layers, self.task
        if task.transfers is not None:
            return task.transfers(shape, following, self.micro_batches)[:layers]
        found = np.zeros((layers, layers + 1))
        for i, j in _runs(layers - 1):
            found[i, j] = task.transfer(i, j, shape, following, self.micro_batches)
        return found

    def _pace(self, each: Array, once: Array, moved: Array) -> Array:
        """(m - 1) p + y; inf where the stage is impossible."""
        period = np.maximum(each, moved) if self.task.overlap else each + moved
        possible = np.isfinite(each)
        pace = (self.micro_batches - 1) * np.where(possible, period, 0.0)
        return np.where(possible, pace + np.where(possible, once, 0.0), np.inf)

    def run(self) -> list[Partition]:
        """The best partition of every number of stages."""
        best: dict[int, Partition] = {}
        active = set(range(1, self.most + 1))
        bound = np.inf
        while active:
            paces = []
            solved = self._solve(bound, max(active))
            for k in sorted(active):
                if k not in solved:
                    active.remove(k)
                    continue
                latency, stages = solved[k]
                found = self._partition(stages)
                if k not in best or found.seconds < best[k].seconds:
                    best[k] = found
                # the pace is at least the mean period, and that at least half of t + x
                share = (self.micro_batches - 1) / (2 * k)
                pace = found.seconds - latency
                # a difference of sums that are equal but for rounding is no pace
                if pace <= _ROUNDING * latency or latency * (1 + share) >= best[k].seconds:
                    active.remove(k)
                else:
                    paces.append(pace)
            bound = max(paces, default=0.0) * (1 - 1e-9) / (1 + self.task.tolerance)
        return list(best.values())

    def _solve(self, bound: float, most: int) -> dict[int, tuple[float, list[Choice]]]:
        """Number of stages (up to `most`) -> (least sum of t + x, stages)."""
        row = self._last_stages(bound)
        rows = [row]
        found: dict[int, tuple[float, list[Choice]]] = {}
        for k in range(1, most + 1):
            self._collect(rows, k, found)
            if k < most:
                rows.append(self._one_more(rows[-1], k + 1, bound))
        return found

    def _last_stages(self, bound: float) -> Row:
        layers = self.task.layers
        row: Row = {}
        each, once = self._at(1)
        for s, shape in enumerate(self.shapes):
            ends = each[s][:, layers]
            pace = self._pace(ends, once[s][:, layers], np.zeros(layers))
            value = np.append(np.where(pace <= bound, ends, np.inf), np.inf)
            state = self._after(_State((0,) * len(self.task.hosts)), shape)
            if state is not None and np.isfinite(value).any():
                row[state, s] = _Entry(
                    value, np.full(layers + 1, layers), np.zeros(layers + 1, int)
                )
        return row

    def _one_more(self, row: Row, behind: int, bound: float) -> Row:
        """The rows of `behind` stages from those of one less."""
        each, once = self._at(behind)
        costs: dict[tuple[int, int], Array] = {}
        found: Row = {}
        for number, ((state, t), entry) in enumerate(row.items()):
            for s, shape in enumerate(self.shapes):
                after = self._after(state, shape)
                if after is None:
                    continue
                if (s, t) not in costs:
                    moved = self.transfers[s, t]
                    allowed = self._pace(each[s], once[s], moved) <= bound
                    costs[s, t] = np.where(allowed, each[s] + moved, np.inf)
                options = costs[s, t] + entry.value[None, :]
                ends = options.argmin(axis=1)
                least = np.append(options[np.arange(len(ends)), ends], np.inf)
                if not np.isfinite(least).any():
                    continue
                new = _Entry(least, np.append(ends, 0), np.full(len(least), number))
                known = found.get((after, s))
                found[after, s] = new if known is None else known.merged(new)
        return found

    def _at(self, behind: int) -> tuple[list[Array], list[Array]]:
        pairs = [self.times[self.held[behind], s] for s in range(len(self.shapes))]
        return [p[0] for p in pairs], [p[1] for p in pairs]

    def _collect(
        self, rows: list[Row], k: int, found: dict[int, tuple[float, list[Choice]]]
    ) -> None:
        """Note the best partition into `k` stages that takes all layers and devices."""
        for (state, s), entry in sorted(rows[k - 1].items(), key=lambda item: item[0][1]):
            is_whole = state.hosts == self.task.hosts and not state.parts
            if not is_whole or not entry.value[0] < found.get(k, (np.inf,))[0]:
                continue
            latency = float(entry.value[0])
            stages, shape, layer = [], s, 0
            for depth in range(k - 1, -1, -1):
                end, origin = int(entry.ends[layer]), int(entry.origins[layer])
                stages.append((layer, end, shape))
                if depth:
                    (_, shape), entry = list(rows[depth - 1].items())[origin]
                    layer = end
            found[k] = (latency, stages)

    def _after(self, state: _State, shape: Shape) -> _State | None:
        """The devices in use with one more stage in front; None if there is no room."""
        gpus, group, mixed = shape.gpus, shape.group, state.mixed
        hosts = tuple(map(sum, zip(state.hosts, shape.hosts(len(state.hosts)), strict=True)))
        if any(n > most for n, most in zip(hosts, self.task.hosts, strict=True)):
            return None
        if gpus == self.task.gpus:
            if state.parts or (shape.beyond and group in mixed):
                return None
            return _State(hosts, mixed=mixed | {group} if shape.beyond else mixed)
        if state.parts and (state.gpus, state.group) != (gpus, group):
            return None
        parts = state.parts + 1
        if parts * gpus == self.task.gpus:
            return _State(hosts, mixed=mixed)
        return _State(state.hosts, gpus, parts, group, mixed)

    def _partition(self, stages: list[Choice]) -> Partition:
        cuts = tuple((first, last, self.shapes[s]) for first, last, s in stages)
        found = placed(self.task, cuts, self.micro_batches, self.held[len(stages) : 0 : -1])
        assert found is not None
        return found


def placed(
    task: Task, cuts: Sequence[Cut], micro_batches: int, held: Sequence[int] | None = None
) -> Partition | None:
    """The partition into these stages, in order; None if it cannot be, or does not fit.

    held: forward passes that each holds, if that is not as its schedule has it
    """
    hosts = [0, *itertools.accumulate(task.hosts)]  # the next of each group
    ends, gpu, open_part = hosts[1:], 0, (0, 0)
    for shape in (shape for *_, shape in cuts if shape.beyond):
        hosts[shape.group + 1] += shape.beyond
        ends[shape.group] -= shape.nodes - shape.beyond
    made: list[Stage] = []
    for n, (first, last, shape) in enumerate(cuts):
        nodes, gpus, group, beyond = shape
        if gpu and open_part != (gpus, group):
            return None
        first_host = shape.first_host(task.hosts) if beyond else hosts[group]
        place, open_part = SubMesh(first_host, nodes, gpu, gpus), (gpus, group)
        if not beyond:
            if hosts[group] + nodes > ends[group]:
                return None
            gpu += gpus
            if gpu == task.gpus:
                hosts[group], gpu = hosts[group] + nodes, 0
        behind = len(cuts) - n
        holds = held[n] if held else in_flight(task.schedule, behind, len(cuts), micro_batches)
        price = task.price(first, last, shape, micro_batches, holds)
        limit = task.memory_limit_bytes * task.room(shape)
        if price is None or price.memory_bytes(holds) > limit * (1 + _ROUNDING):
            return None
        moved = 0.0
        if n + 1 < len(cuts):
            moved = task.transfer(first, last, shape, cuts[n + 1][2], micro_batches)
        made.append(Stage(first, last, place, price, moved, shape))
    return Partition(tuple(made), micro_batches, iteration_s(made, micro_batches, task.overlap))


def interleaved_partition(
    layers: int, nodes: int, gpus: int, stages: int, chunks: int, micro_batches: int, price: PriceFn
) -> Partition:
    """`stages` x `chunks` parts in order, stage by stage and chunk by chunk.

    Raises ValueError if there are more parts than layers, or no equal stages.
    """
    parts = stages * chunks
    if parts > layers:
        raise ValueError(
            f"{stages} stages of {chunks} parts are more than the model's {layers} layers; "
            "ask for fewer stages or chunks"
        )
    shape = equal_shapes(nodes, gpus, stages)

    @lru_cache(None)
    def priced(first: int, last: int) -> StagePrice | None:
        return price(first, last, shape, micro_batches, 1)

    def seconds(first: int, last: int) -> float:
        found = priced(first, last)
        return math.inf if found is None else found.forward_s + found.backward_s

    @lru_cache(None)
    def best(left: int, first: int) -> tuple[float, int]:
        """(slowest part, end of the first part) of `left` parts from layer `first` on."""
        if left == 1:
            return seconds(first, layers), layers
        return min(
            (max(seconds(first, j), best(left - 1, j)[0]), j)
            for j in range(first + 1, layers - left + 2)
        )

    found: list[Stage] = []
    first = 0
    for part in range(parts):
        last = best(parts - part, first)[1]
        own = priced(first, last)
        if own is None:
            raise ValueError(f"layers {first}-{last - 1} cannot run on {shape[0]} x {shape[1]}")
        found.append(Stage(first, last, _place(part % stages, shape, gpus), own, 0.0, shape))
        first = last
    slowest = best(parts, 0)[0]
    once = max(sum(s.price.once_s for s in found[i::stages]) for i in range(stages))
    total = (micro_batches * chunks + stages - 1) * slowest + once
    return Partition(tuple(found), micro_batches, total)


def _place(stage: int, shape: Shape, gpus: int) -> SubMesh:
    nodes, each = shape.nodes, shape.gpus
    host, device = divmod(stage * nodes * each, gpus)
    return SubMesh(host, nodes, device, each)


def neighbours(own: Partition, counts: Sequence[int], task: Task) -> Iterator[Partition]:
    """What differs in one cut, in the devices of two stages, or in its micro-batches."""
    cuts, count = own.cuts, own.micro_batches
    for n, ((begin, middle, one), (_, end, two)) in enumerate(itertools.pairwise(cuts)):
        for at in (middle - 1, middle + 1):
            if begin < at < end:
                both = (begin, at, one), (at, end, two)
                yield from _placed(task, [(*cuts[:n], *both, *cuts[n + 2 :])], count)
    for n, m in itertools.combinations(range(len(cuts)), 2):
        if cuts[n][2] != cuts[m][2]:
            every = list(_exchanged(cuts, n, m))
            yield from sorted(_placed(task, every, count), key=lambda found: found.seconds)[:1]
    for other in counts:
        if other != count:
            yield from _placed(task, [cuts], other)


def _exchanged(cuts: Cuts, one: int, two: int) -> Iterator[Cuts]:
    """Two stages exchange their devices, of neighbours with any cut between them.

    Others exchange their numbers of layers as well.
    """
    if two == one + 1:
        (begin, _, first), (_, end, second) = cuts[one], cuts[two]
        for at in range(begin + 1, end):
            both = (begin, at, second), (at, end, first)
            yield (*cuts[:one], *both, *cuts[two + 1 :])
        return
    order = [(last - first, shape) for first, last, shape in cuts]
    order[one], order[two] = order[two], order[one]
    ends = itertools.accumulate(length for length, _ in order)
    yield tuple(
        (end - length, end, shape) for end, (length, shape) in zip(ends, order, strict=True)
    )


def _placed(task: Task, every: Sequence[Cuts], micro_batches: int) -> Iterator[Partition]:
    found = (placed(task, cuts, micro_batches) for cuts in every)
    return (own for own in found if own is not None)


def _runs(layers: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(layers) for j in range(i + 1, layers + 1))
