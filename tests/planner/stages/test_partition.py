"""Stage partition by dynamic programming, against all partitions of small random instances."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.planner.stages.choice import with_waits
from autoddl.planner.stages.partition import partition, partitions, placed
from autoddl.planner.stages.task import Shape, Task, in_flight, shapes_of
from autoddl.plans.schedule import orders
from autoddl.plans.schedule.make import make_schedule
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.plans.stage import StagePrice


class Instance:
    """Layers of random work and memory, a random speed-up for each shape.

    hosts: of each group; the devices of later ones are up to 4 times as slow and have up to 3 times
           the memory
    mixes: stages may have hosts of two groups
    """

    def __init__(
        self,
        rng: random.Random,
        layers: int,
        hosts: tuple[int, ...],
        gpus: int,
        mixes: bool = False,
    ) -> None:
        self.work = [rng.randint(1, 9) for _ in range(layers)]
        self.weight = [rng.randint(1, 5) for _ in range(layers)]
        self.stash = [rng.randint(0, 3) for _ in range(layers)]
        self.sent = [rng.randint(0, 4) for _ in range(layers + 1)]
        slow = [1.0, *(rng.uniform(1, 4) for _ in hosts[1:])]
        self.room = [1.0, *(rng.uniform(1, 3) for _ in hosts[1:])]
        shapes = [Shape(n, gpus, k) for k, count in enumerate(hosts) for n in range(1, count + 1)]
        shapes += [
            Shape(1, g, k) for k in range(len(hosts)) for g in range(1, gpus) if gpus % g == 0
        ]
        self.loss = {s: rng.uniform(1, 1.6) * slow[s.group] for s in shapes}
        for k, (one, two) in enumerate(itertools.pairwise(hosts) if mixes else ()):
            for before, beyond in itertools.product(range(1, one + 1), range(1, two + 1)):
                if before + beyond < sum(hosts):
                    shape = Shape(before + beyond, gpus, k, beyond)
                    share = beyond / shape.nodes
                    loss = (1 - share) * slow[k] + share * slow[k + 1]
                    self.loss[shape] = rng.uniform(1, 1.3) * loss
        self.layers, self.hosts, self.nodes, self.gpus = layers, hosts, sum(hosts), gpus

    def price(self, first, last, shape, micro_batches, held):
        size = shape[0] * shape[1]
        run = slice(first, last)
        seconds = sum(self.work[run]) * self.loss[shape] / size / micro_batches
        weight = sum(self.weight[run])
        return StagePrice(
            seconds / 3, 2 * seconds / 3, weight * (1 - 1 / size), weight / size,
            sum(self.stash[run]) / size / micro_batches,
        )  # fmt: skip

    def room_of(self, shape):
        return min(self.room[group] for group in shape.groups)

    def transfer(self, first, last, shape, following, micro_batches):
        apart = 1 + abs(shape.group - following.group)
        return apart * self.sent[last] / min(shape[0], following[0]) / micro_batches / 2


def brute_force(instance, schedule, limit, counts, overlap):
    """Number of stages -> least T, over all cuts, shapes (in order) and micro-batches."""
    shapes = sorted(instance.loss)
    best = {}
    for k in range(1, min(instance.layers, instance.nodes * instance.gpus) + 1):
        for chosen in itertools.product(shapes, repeat=k):
            if not tiles(chosen, instance.hosts, instance.gpus):
                continue
            for cuts in itertools.combinations(range(1, instance.layers), k - 1):
                bounds = (0, *cuts, instance.layers)
                for m in counts:
                    total = pace = 0.0
                    for n, shape in enumerate(chosen):
                        held = in_flight(schedule, k - n, k, m)
                        p = instance.price(bounds[n], bounds[n + 1], shape, m, held)
                        if p.fixed_bytes + held * p.stash_bytes > limit * instance.room_of(shape):
                            break
                        t = p.forward_s + p.backward_s
                        x = 0.0
                        if n + 1 < k:
                            x = instance.transfer(bounds[n], bounds[n + 1], shape, chosen[n + 1], m)
                        total += t + x
                        period = max(t, x) if overlap else t + x
                        pace = max(pace, (m - 1) * period + p.once_s)
                    else:
                        best[k] = min(best.get(k, float("inf")), total + pace)
    return best


def tiles(shapes, hosts, gpus):
    """True if the shapes, in order, fill each group's hosts: whole ones, or equal parts of one."""
    whole, used, open_part = [0] * len(hosts), 0, (0, 0)
    mixed = [shape.group for shape in shapes if shape.beyond]
    if len(set(mixed)) < len(mixed):
        return False
    for n, g, group, beyond in shapes:
        if g == gpus:
            if used:
                return False
            whole[group] += n - beyond
            if beyond:
                whole[group + 1] += beyond
        else:
            if used and open_part != (g, group):
                return False
            open_part, used = (g, group), used + g
            if used == gpus:
                whole[group], used = whole[group] + 1, 0
    return tuple(whole) == hosts and used == 0


@given(st.randoms(use_true_random=False), st.data())
@settings(max_examples=40)
def test_as_good_as_every_partition(rng, data):
    alike = [((1,), 2), ((2,), 1), ((2,), 2), ((3,), 1), ((1,), 4), ((3,), 2)]
    unlike = [((1, 1), 1), ((2, 1), 1), ((1, 2), 1), ((1, 1), 2), ((1, 1, 1), 1), ((2, 2), 1)]
    hosts, gpus = data.draw(st.sampled_from(alike + unlike))
    mixes = data.draw(st.booleans())
    instance = Instance(rng, data.draw(st.integers(1, 4)), hosts, gpus, mixes)
    schedule = data.draw(st.sampled_from(["gpipe", "1f1b", "eager-1f1b", "zb-h1"]))
    limit = data.draw(st.sampled_from([3.0, 6.0, 12.0, 100.0]))
    overlap = data.draw(st.booleans())
    counts = (1, 2, 4)
    expected = brute_force(instance, schedule, limit, counts, overlap)
    task = Task(
        instance.layers, sum(hosts), gpus, limit, instance.price, instance.transfer, schedule,
        overlap=overlap, groups=tuple(zip(hosts, instance.room, strict=True)), mixes=mixes,
    )  # fmt: skip
    if not expected:
        with pytest.raises(ValueError, match="fits the memory limit"):
            partition(task, counts)
        return
    assert partition(task, counts).seconds == pytest.approx(min(expected.values()))
    found = {}
    for p in partitions(task, counts):
        found[len(p.stages)] = min(found.get(len(p.stages), float("inf")), p.seconds)
        check(p, instance, schedule, limit)
    assert found == pytest.approx(expected)


def check(p, instance, schedule, limit):
    """Layers in order, all devices once, memory kept."""
    assert [s.first for s in p.stages[1:]] == [s.last for s in p.stages[:-1]]
    assert (p.stages[0].first, p.stages[-1].last) == (0, instance.layers)
    devices = [d for s in p.stages for d in s.place.devices]
    assert sorted(devices) == [(h, g) for h in range(instance.nodes) for g in range(instance.gpus)]
    for n, stage in enumerate(p.stages):
        held = in_flight(schedule, len(p.stages) - n, len(p.stages), p.micro_batches)
        assert stage.price.memory_bytes(held) <= limit * instance.room_of(stage.shape)


def even(layers, nodes, gpus, limit=1e12, **options):
    """Equal layers that speed up in proportion; weights of 1 byte, stash of 1 byte."""

    def price(first, last, shape, micro_batches, held):
        n = last - first
        size = shape[0] * shape[1]
        return StagePrice(n / size, 2 * n / size, 0.0, n / size, n / size)

    return Task(layers, nodes, gpus, limit, price, lambda *_: 0.0, **options)


def test_equal_stages_follow_the_closed_form():
    p = partition(even(8, 4, 1, stages=4), [8])
    assert [s.last - s.first for s in p.stages] == [2, 2, 2, 2]
    assert p.seconds == (8 + 4 - 1) * 6
    schedule = make_schedule("1f1b", 4, 8)
    each = tuple(s.last - s.first for s in p.stages)
    costs = Costs(each, each, each, {}, {})
    assert simulate(schedule, costs).makespan_s == p.seconds


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("transfer_s", [0.0, 1.0, 2.0])
def test_transfers_keep_a_stage_from_beginning_another_micro_batch(schedule, transfer_s):
    """1F1B's first of two stages holds two, so a transfer shows though computation hides it."""

    def price(first, last, shape, micro_batches, held):
        return StagePrice(last - first, 2 * (last - first), 0.0, 0.0, 0.0)

    task = Task(2, 2, 1, 1e12, price, lambda *_: transfer_s, schedule, stages=2)
    found = partition(task, [16])
    one_way = {(0, 1): transfer_s / 2}
    costs = Costs((1.0, 1.0), (1.0, 1.0), (1.0, 1.0), one_way, one_way)
    timeline = simulate(make_schedule(schedule, 2, 16, costs=costs), costs)
    told = with_waits(found, schedule)
    assert told.seconds == pytest.approx(timeline.makespan_s, rel=0.02)
    assert (told.seconds > found.seconds * 1.1) == (schedule == "1f1b" and transfer_s > 0)


def test_memory_decides_where_to_cut():
    """1F1B holds more at the front, so a tight limit gives the first stages fewer layers."""
    p = partition(even(12, 3, 1, limit=14.0, stages=3), [8])
    assert p.stages[0].last - p.stages[0].first < p.stages[2].last - p.stages[2].first
    with pytest.raises(ValueError, match=r"into 3 stages .* memory limit"):
        partition(even(12, 3, 1, limit=4.0, stages=3), [8])


def test_stages_that_do_not_fit_the_hosts_are_no_partition():
    task = even(4, 2, 2)
    whole, half = Shape(1, 2), Shape(1, 1)
    runs = [(n, n + 1) for n in range(4)]
    for shapes in ((whole, whole), (half, half, whole)):
        cuts = [(*run, own) for run, own in zip(runs, shapes, strict=False)]
        found = placed(task, cuts, 4)
        assert found is not None and found.cuts == tuple(cuts)
    for shapes in ((half, whole, half), (whole, whole, whole), (Shape(2, 2), half)):
        assert (
            placed(task, [(*run, own) for run, own in zip(runs, shapes, strict=False)], 4) is None
        )
    assert placed(even(4, 2, 2, limit=0.9), [(0, 2, whole), (2, 4, whole)], 1) is None


def test_parts_of_hosts():
    p = partition(even(8, 2, 4, stages=4), [8])
    assert {s.shape for s in p.stages} == {Shape(1, 2)}
    assert [s.place.devices[0] for s in p.stages] == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_shapes_on_many_hosts():
    assert shapes_of(128, 8, 16) == ((8, 8), (16, 8), (32, 8), (64, 8), (128, 8))
    assert shapes_of(2, 4, 8) == ((1, 1), (1, 2), (1, 4), (2, 4))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (even(3, 4, 1, stages=4), "4 stages are more than the model's 3 layers"),
        (even(9, 2, 2, stages=5), "5 stages are more than the 4 devices"),
        (even(9, 2, 2, stages=0), "at least one stage"),
        (even(4, 2, 2, limit=0.4), "no partition into any number of stages with 1 or 2 micro"),
        (even(4, 2, 2, limit=0.4), "The largest layer, number 3, needs at least 5e-10 GB on 2 x 2"),
        (even(4, 2, 2, limit=0.6), "Each layer by itself would fit in a stage, but not all 4"),
        (even(4, 2, 2, schedule="chimera"), "no partition for schedule 'chimera'; known: gpipe"),
    ],
)
def test_bad_input(task, message):
    with pytest.raises(ValueError, match=message):
        partition(task, [1, 2])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", range(5))
def test_one_micro_batch_whose_sums_differ_by_rounding_ends(seed):
    """With one micro-batch there is no pace; rounding once looked like one, for ever."""
    rng = random.Random(seed)
    work = [rng.random() * 1e-4 for _ in range(12)]

    def price(first, last, shape, micro_batches, held):
        del micro_batches, held
        seconds = sum(work[first:last]) / (shape[0] * shape[1])
        return StagePrice(seconds / 3, 2 * seconds / 3, 1e-19 * rng.random(), 0.0, 0.0)

    found = partitions(Task(12, 4, 2, 1.0, price, lambda *_: 1e-6), [1])
    assert min(p.seconds for p in found) <= sum(work) * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_what_a_stage_is_taken_to_hold_is_what_its_schedule_holds(schedule, stages):
    for parts in (1, 2, 8, 16):
        taken = tuple(in_flight(schedule, stages - n, stages, parts) for n in range(stages))
        assert taken == orders.in_flight(schedule, stages, parts)
