"""Chooses how a model is cut into pipeline stages: which layers on which part of the cluster.

`Ranking` chooses cuts, sub-meshes, the number of stages and of micro-batches jointly
(`stages.partition` over `stage_prices`), searching what is chosen anew until that changes nothing.
Partitions of several numbers of stages and micro-batches are compared `with_waits`.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from ...cluster.spec import Cluster
from ...cost.model import CostModel
from ...cost.operators import speeds
from ...graph.cut import CutGraph
from ...graph.rows import find_rows, why_whole
from ...plans.format import before, format_seconds, more
from ...plans.plan import Plan
from ...plans.schedule.make import make_schedule
from ...plans.schedule.schedule import Costs
from ...plans.schedule.simulate import simulate
from ...search.budget import FIRST_PART, Deadline
from ..options import INTERLEAVED, PlanOptions
from .partition import interleaved_partition, neighbours, partitions
from .stage_prices import LARGE, StagePrices
from .task import Cuts, Partition, Task, in_flight

_log = logging.getLogger(__name__)


# Of the best partitions. In 79 of 89 random cases with long transfers the fastest of these is
# within 1 % of the best of all (`test_partition_simulated`), the first of them in 71; where
# descents go on from them in all, and in 264 others.
_SIMULATED = 8
# Stages times micro-batches that are simulated, 0.2 ms each. 300 and 3,000 gave the same plans of
# VGG13 in two stages, GPT-0.35B in two and four, and small GPTs; 3,000 the same cases.
_NEARBY = 1_000
# Of the devices: where less of them idles, no stage on hosts of two kinds is looked for. Of six
# MLPs on 3 to 6 hosts five gain by such stages, by up to 47 %; with 0 as much, with 0.2 one.
_IDLE = 0.05
WORTH = 0.003  # of the time: for less than that a partition near the best is not planned, too
_ROUNDING = 1e-9  # relative: seconds that differ by less are equal


# That are looked at where as many as pay are asked for. 8 and 32 gave the same plans of a small GPT
# on 2x2 and VGG13 on 2x4, in times within noise.
MOST_STAGES = 16
# Measured on GPT 0.35B in 4 stages of 9 GB and a small GPT on 4x2: a tolerance of 0.05 (of the
# partition's time) gave the first a plan that takes 4.5 % longer, 0.001 the same plans; 2 and 12
# refinements the same plans.
_TOLERANCE = 0.01
_REFINEMENTS = 6


@dataclass
class Ranking:
    """The partitions of a model, the best first, by what is known of the memory of its stages.

    counts: numbers of micro-batches to try, ascending
    deadline: half of the time until then is taken; afterwards only what a first partition needs
    gives_up: nothing is searched after the deadline
    task: of the partitions found last; None of an interleaved pipeline
    """

    cut: CutGraph
    model: CostModel
    counts: Sequence[int]
    options: PlanOptions
    deadline: Deadline
    gives_up: bool = False
    prices: StagePrices = field(init=False)
    task: Task | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        options, schedule = self.options, self.options.schedule
        # a delayed weight gradient keeps what a block that is run again would have forgotten
        again = options.delay is None and schedule != "zb-h1" and options.checkpointing != "none"
        schedule = "1f1b" if schedule == INTERLEAVED else schedule
        cutting = self.deadline.part(FIRST_PART)
        asked = self.cut, self.model, self.counts, schedule, again, options.zero, cutting
        self.prices = StagePrices(*asked)

    def partitions(self) -> list[Partition]:
        """Searched as far as there is time; anew with what has been refuted since (`StagePrices`).

        Raises ValueError if there are more stages than layers or devices, or nothing fits.
        """
        if self.options.schedule == INTERLEAVED:
            found = self._fitting(lambda: _interleaved(self.prices, self.counts, self.options))
        else:
            found = self._of_any_shape()
        if self.prices.deadline.was_ended:
            self.deadline.end()
        return found

    def refute(self, chosen: Partition, number: int) -> None:
        """A stage of a partition does not fit, as has turned out when it was planned."""
        own = chosen.stages[number]
        asked = own.shape, chosen.micro_batches, self._held(chosen, number)
        self.prices.learned.refute(own.first, own.last, *asked)

    def note(self, chosen: Partition, plan: Plan) -> None:
        """The stages of a partition have been planned, and take what they take there."""
        held = [self._held(chosen, n) for n in range(len(chosen.stages))]
        self.prices.note(chosen, held, plan)

    def _held(self, chosen: Partition, number: int) -> int:
        """Forward passes that a stage was taken to hold when it was priced."""
        count = len(chosen.stages)
        if self.task is None:
            return 1
        return in_flight(self.options.schedule, count - number, count, chosen.micro_batches)

    def _of_any_shape(self) -> list[Partition]:
        """With stages on hosts of two groups where without them nothing fits or too much idles."""
        prices = self.prices
        task = self.task = self.task or self._first_task()
        try:
            found = self._ranked(task)
            if task.mixes or not _may_mix(found[0], prices):
                return found
        except ValueError:
            if task.mixes or len(task.groups) < 2 or prices.deadline.is_over:
                raise
            found = []
        self.task = replace(task, mixes=True)
        found += self._ranked(self.task)
        return sorted(found, key=lambda own: (own.seconds, len(own.stages)))

    def _first_task(self) -> Task:
        options, prices, cluster = self.options, self.prices, self.model.cluster
        stages = None if options.stages == "auto" else options.stages
        most = stages or min(MOST_STAGES, len(self.cut.layers), cluster.num_devices)
        return Task(
            len(self.cut.layers),
            cluster.nodes,
            cluster.gpus_per_node,
            self.model.limit_bytes,
            prices.price,
            prices.transfer,
            options.schedule,
            stages,
            most,
            tolerance=_TOLERANCE,
            times=prices.times,
            transfers=prices.transfers,
            is_over=lambda: prices.deadline.is_over,
            groups=_groups(cluster),
        )

    def _ranked(self, task: Task) -> list[Partition]:
        asked = task, self.prices, self._few, self.counts, self.gives_up
        return self._fitting(lambda: _ranked(*asked))

    @cached_property
    def _few(self) -> Sequence[int]:
        """The numbers of micro-batches that are tried first."""
        assert self.task is not None and self.task.most_stages is not None
        prices, stages, most = self.prices, self.task.stages, self.task.most_stages
        few = self.counts
        if self.model.cluster.num_devices <= LARGE:
            # each is searched; with more there are fewer than an eighth of the bubbles
            few = tuple(n for n in few if n <= 8 * most) or few
        if stages is not None and self.deadline.seconds < math.inf:
            searched = prices.refine_equal(stages)
            if searched is not None and prices.deadline.is_over:
                few = (searched,)
        return few

    def _fitting(self, find: Callable[[], list[Partition]]) -> list[Partition]:
        """Found in time; if none fits, in more time, and on sub-meshes that seemed hopeless."""
        cutting = self.prices.deadline
        while True:
            try:
                return find()
            except ValueError:
                if cutting.is_over:
                    if self.gives_up and self.deadline.is_over:
                        raise
                    cutting.follow(self.deadline, self.gives_up)
                elif not self.prices.search_the_rest():
                    raise


def fastest_simulated(found: Sequence[Partition], task: Task, delay: int | None) -> Partition:
    """The partition whose simulated schedule is fastest, of the best and of those near them.

    From each of the best goes a descent: a cut moves by a layer, or two stages exchange their
    devices, or micro-batches become as many as others of the best have, as long as the schedule
    gets shorter.
    """
    task = replace(task, price=lru_cache(None)(task.price))  # stages that stay as they are
    known: dict[tuple[int, Cuts], float] = {}
    left = _NEARBY

    def seconds(own: Partition) -> float:
        nonlocal left
        key = own.key
        if key not in known:
            known[key] = simulated_s(own, task.schedule, delay)
            left -= own.micro_batches * len(own.stages)
        return known[key]

    ranked = sorted(found[:_SIMULATED], key=seconds)
    counts = sorted({own.micro_batches for own in ranked})
    best, enough_s = ranked[0], seconds(ranked[0]) * (1 - WORTH)
    for own in ranked:
        moves = neighbours(own, counts, task)
        while left > 0 and (other := next(moves, None)) is not None:
            if seconds(other) < seconds(own) * (1 - _ROUNDING):
                own, moves = other, neighbours(other, counts, task)
        if seconds(own) < enough_s:
            best, enough_s = own, seconds(own)
    return best


def simulated_s(found: Partition, schedule: str, delay: int | None = None) -> float:
    """Seconds of a step by the simulated schedule; each stage then does what it does once."""
    stages, count = found.stages, found.micro_batches
    forward = tuple(own.price.forward_s for own in stages)
    half = tuple(own.price.backward_s / 2 for own in stages)
    moved = {(n, n + 1): own.transfer_s / 2 for n, own in enumerate(stages[:-1])}
    costs = Costs(forward, half, half, moved, moved)
    made = make_schedule(schedule, len(stages), count, delay=delay, costs=costs)
    ends = dict.fromkeys(range(len(stages)), 0.0)
    for span in simulate(made, costs).spans:
        ends[span.stage] = max(ends[span.stage], span.end_s)
    return max(ends[n] + own.price.once_s for n, own in enumerate(stages))


def _may_mix(found: Partition, prices: StagePrices) -> bool:
    """Whether stages on hosts of two groups are to be tried: too much idles, and there is time.

    What idles: of what all devices could compute at the pace of the slowest stage, what they do
    not; hosts that are f times as fast count f times.
    """
    cluster = prices.model.cluster
    if not cluster.groups or prices.deadline.is_over:
        return False
    speed = dict(zip(cluster.runs, speeds(cluster, prices.cut.graph), strict=True))
    each = [own.price.forward_s + own.price.backward_s for own in found.stages]
    sizes = [
        own.shape.gpus * sum(n * speed[g] for g, n in cluster.groups_of(own.place).items())
        for own in found.stages
    ]
    busy = sum(size * seconds for size, seconds in zip(sizes, each, strict=True))
    return busy < (1 - _IDLE) * max(each) * sum(sizes)


def _groups(cluster: Cluster) -> tuple[tuple[int, float], ...]:
    """Hosts of each, and their devices' memory, beside that of the device that has least."""
    return tuple(
        (group.nodes, cluster.device_of(number).memory_bytes / cluster.memory_bytes)
        for number, group in enumerate(cluster.groups)
    )


def _ranked(
    task: Task,
    prices: StagePrices,
    counts: Sequence[int],
    others: Sequence[int],
    gives_up: bool,
) -> list[Partition]:
    """The partitions, the best first: its stages have been searched in its micro-batches.

    Those searched in more do not show how well fewer, larger ones would do, nor those in fewer
    anything of more, so of the best its neighbours are searched as well, and if it runs blocks
    again, also as many as might do without. Ctrl-C ends it with the partitions so far, or if there
    are none, with those of what was searched before it, as a deadline does; unless it `gives_up`.
    """
    ranked: list[Partition] = []
    try:
        return _refined(task, prices, counts, others, ranked)
    except KeyboardInterrupt:
        if gives_up and not ranked:
            raise
        prices.deadline.end()
        if ranked:
            return ranked
    try:
        return _refined(task, prices, counts, others, ranked)
    except ValueError:
        raise KeyboardInterrupt from None


def _refined(
    task: Task,
    prices: StagePrices,
    counts: Sequence[int],
    others: Sequence[int],
    ranked: list[Partition],
) -> list[Partition]:
    """The partitions once their stages have been searched; meanwhile they stand in `ranked`."""
    refined = 0
    while True:
        ranked[:] = sorted(_some(task, counts, others), key=lambda p: (p.seconds, len(p.stages)))
        best, stages = ranked[0].micro_batches, len(ranked[0].stages)
        seconds = format_seconds(ranked[0].seconds)
        _log.info("best so far %s in %d stages with %d micro-batches", seconds, stages, best)
        if prices.deadline.is_over:
            return ranked
        shapes = sorted({stage.shape for stage in ranked[0].stages})
        near = [n for n in others if n != best and best / 2 <= n <= best * 2]
        if any(stage.price.work_bytes > 0 for stage in ranked[0].stages):
            keeping = {prices.keeping_count(shape) for shape in shapes}
            near += [n for n in others if n in keeping and n not in (best, *near)]
        for count in (best, *near):
            tries = _REFINEMENTS - refined - 1
            with before(more(tries, "look at the cuts", "looks at the cuts", most=True)):
                anew = [prices.refine(shape, count) for shape in shapes]
            refined += any(anew)
            if any(anew):
                break
        else:
            return ranked
        if refined == _REFINEMENTS:
            return sorted(_some(task, counts, others), key=lambda p: (p.seconds, len(p.stages)))


def _some(task: Task, counts: Sequence[int], others: Sequence[int]) -> list[Partition]:
    """The partitions with `counts` micro-batches; if there are none, those with `others`."""
    try:
        found = partitions(task, counts)
    except ValueError:
        if tuple(counts) == tuple(others):
            raise
        found = partitions(task, others)
    return [with_waits(own, task.schedule, task.overlap) for own in found]


def with_waits(found: Partition, schedule: str, overlap: bool = True) -> Partition:
    """With the seconds in which stages wait for micro-batches that are on their way.

    Stage i holds h_i micro-batches, and begins another one only when one of these has been to the
    last stage and back, L_i seconds later with transfers. So m micro-batches take no less than

        L_1 + (m - h_i) L_i / h_i + (h_i - 1) p + y_i

    with p of the slowest stage and y_i as `partition` has them. VGG-13 in two stages on 2x4, whose
    transfers take as long as its computation, is so told to take 0.136 s in 16 micro-batches and
    takes 0.138 s; without waits 0.102 s were told, which kept it from the 0.129 s that it takes in
    four.
    """
    count, parts = len(found.stages), found.micro_batches
    each = [own.price.forward_s + own.price.backward_s for own in found.stages]
    moved = [own.transfer_s for own in found.stages]
    period = max(max(pair) if overlap else sum(pair) for pair in zip(each, moved, strict=True))
    seconds, latency, behind = found.seconds, sum(each) + sum(moved), 0.0
    for n, stage in enumerate(found.stages):
        held = in_flight(schedule, count - n, count, parts)
        waits = (parts - held) / held * (latency - behind)
        seconds = max(seconds, latency + waits + (held - 1) * period + stage.price.once_s)
        behind += each[n] + moved[n]
    return replace(found, seconds=seconds)


def _interleaved(
    prices: StagePrices, counts: Sequence[int], options: PlanOptions
) -> list[Partition]:
    """Partitions into equal stages of several parts, the best first."""
    cut, cluster, stages = prices.cut, prices.model.cluster, options.stages
    assert isinstance(stages, int)
    possible = [m for m in counts if m % stages == 0]
    meeting = find_rows(cut.graph).meeting
    if not possible and meeting is not None:
        raise ValueError(why_whole(meeting, f"in groups of {stages} micro-batches"))
    if not possible:
        raise ValueError(
            f"{INTERLEAVED} takes its micro-batches in groups of one a stage: "
            f"{' or '.join(map(str, counts))} micro-batches do not divide by {stages} stages"
        )
    layers, shape = len(cut.layers), (cluster.nodes, cluster.gpus_per_node)
    found: list[Partition] = []
    failed: list[ValueError] = []
    for m in possible:
        try:
            own = interleaved_partition(layers, *shape, stages, options.chunks, m, prices.price)
            found.append(own)
        except ValueError as error:  # what was searched in others does not divide these
            failed.append(error)
    if not found:
        raise failed[0]
    return sorted(found, key=lambda p: p.seconds)
