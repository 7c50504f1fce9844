"""Two strands: Akers' path is the optimum, and never longer than HiDup's lock-step."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from autoddl.plans.schedule import duplex
from autoddl.plans.schedule.duplex import Strand, interleaved
from autoddl.plans.schedule.simulate import Queued, run


def random_strand(rng: np.random.Generator, most: int) -> Strand:
    """Some have tasks of equal lengths, whose rectangles touch; some tasks hold both queues."""
    count = int(rng.integers(0, most + 1))
    seconds = rng.choice([1.0, 2.0, 0.3], count) if rng.random() < 0.3 else rng.random(count)
    queues = rng.choice([1, 2, 3], count, p=[0.45, 0.45, 0.1])
    return [(int(q), float(s)) for q, s in zip(queues, seconds, strict=True)]


def lock_step(stages: Sequence[tuple[float, float]]) -> float:
    """Seconds of two halves in turns, of stages (communication m, computation c): HiDup's Eq. 5.

    Each stage communicates and then computes; one half's communication runs beside the other's
    computation, and the next turn waits for both.

    psi_i = psi_(i-1) - c_(i-1) + max(c_(i-1), m_i) + max(m_i, c_i) + c_i,    c_0 = psi_0 = 0
    """
    psi = last = 0.0
    for m, c in stages:
        psi += max(last, m) - last + max(m, c) + c
        last = c
    return psi


def brute_force(first: Strand, second: Strand) -> float:
    """The earliest end of all merges of two strands, each task as soon as its queue is free."""
    count = len(first) + len(second)
    places = list(itertools.combinations(range(count), len(first)))
    free = np.zeros((len(places), 2))  # by queue
    done = np.zeros((len(places), 2))  # by strand
    next_of = np.zeros((len(places), 2), dtype=np.int64)
    is_first = np.zeros((len(places), count), dtype=bool)
    if first:
        np.put_along_axis(is_first, np.array(places), True, axis=1)
    rows = np.arange(len(places))
    width = max(len(first), len(second), 1)
    padded = np.zeros((2, width, 2))
    for number, strand in enumerate((first, second)):
        for task, (queue, seconds) in enumerate(strand):
            padded[number, task] = queue, seconds
    for position in range(count):
        strand = np.where(is_first[:, position], 0, 1)
        queues, seconds = padded[strand, next_of[rows, strand]].T
        held = queues.astype(np.int64)[:, None] & (1, 2) > 0
        end = np.maximum(np.where(held, free, 0).max(axis=1), done[rows, strand]) + seconds
        free[held] = np.broadcast_to(end[:, None], held.shape)[held]
        done[rows, strand] = end
        next_of[rows, strand] += 1
    return float(done.max(axis=1).min())


def simulated(first: Strand, second: Strand, slack: float = 0.0) -> float:
    """The end of the order that is found, run by the simulator of all schedules."""
    found = interleaved(first, second, slack)
    number_of = {point: number for number, point in enumerate(found.order)}
    tasks = []
    for strand, task in found.order:
        queue, seconds = (first, second)[strand][task]
        needs = (number_of[strand, task - 1],) if task else ()
        held = tuple(number for number in (0, 1) if queue & 1 << number)
        tasks.append(Queued(seconds, held, needs))
    return max(run(tasks)[1], default=0.0)


@pytest.mark.parametrize("strands", [400, pytest.param(1000, marks=pytest.mark.full)])
def test_the_path_is_the_best_of_all_merges_and_what_the_simulator_makes_of_it(strands):
    rng = np.random.default_rng(0)
    for number in range(strands):
        first = random_strand(rng, 6)
        second = first if number % 2 else random_strand(rng, 6)  # equal ones are searched by half
        found = interleaved(first, second)
        assert found.seconds == pytest.approx(brute_force(first, second), abs=1e-9)
        assert simulated(first, second) == pytest.approx(found.seconds, abs=1e-9)


@pytest.mark.parametrize("strands", [2_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_the_path_is_never_longer_than_lock_step_nor_than_two_serial_strands(strands):
    rng = np.random.default_rng(1)
    gains = []
    for _ in range(strands):
        stages = rng.random((int(rng.integers(1, 7)), 2)) * (1.0, rng.choice([0.3, 1.0, 3.0]))
        strand = [
            (queue, float(s)) for stage in stages for queue, s in zip((2, 1), stage, strict=True)
        ]
        seconds, serial = interleaved(strand, strand).seconds, 2 * float(stages.sum())
        assert seconds <= lock_step(stages.tolist()) * (1 + 1e-12)
        assert max(2 * stages.sum(axis=0).max(), serial / 2) <= seconds * (1 + 1e-12)
        gains.append(lock_step(stages.tolist()) / seconds)
    assert max(gains) > 1.05


def test_lock_step_takes_turns():
    """By hand: m a; m b beside c a; then the longer of c b and the next m a; and so on."""
    assert lock_step([(1.0, 2.0), (4.0, 3.0)]) == 1 + 2 + 4 + 4 + 3
    assert lock_step([]) == 0.0


def test_computation_and_communication_of_equal_length_hide_each_other():
    strand = [(0, 1.0), (1, 1.0)] * 50
    assert interleaved(strand, strand).seconds == pytest.approx(101.0)


def test_a_path_past_very_many_corners_is_found_soon(monkeypatch):
    """Of a rough plan of GPT-36B it took 16 s, and no budget of seconds ends it."""
    rng = np.random.default_rng(0)
    strand = [(1 + n % 2, float(s)) for n, s in enumerate(rng.exponential(size=400))]
    calls = []

    def counted(*asked):
        own = ways_on(*asked)

        def counting(*point):
            calls.append(point)
            return own(*point)

        return counting

    ways_on = duplex._ways_on
    monkeypatch.setattr(duplex, "_ways_on", counted)
    monkeypatch.setattr(duplex, "_MOST_CORNERS", 2_000)
    found = interleaved(strand, strand, 0.005)
    assert len(calls) < 20_000  # 34,000 if the slack is never raised
    assert simulated(strand, strand, 0.005) == pytest.approx(found.seconds)
    busy_s = max(2 * sum(s for queue, s in strand if queue == own) for own in (1, 2))
    assert busy_s <= found.seconds < 0.8 * 2 * sum(s for _, s in strand)


def test_tasks_that_take_no_time_are_refused():
    with pytest.raises(ValueError, match="leave those out"):
        interleaved([(0, 1.0), (1, 0.0)], [])
