"""Which point is visited next: all get a first median, then what costs little is refined."""

import numpy as np
import pytest

from autoddl.runtime.measure.measured import (
    Limits,
    is_over,
    next_point,
    progress,
    stop,
    visit_seconds,
)
from autoddl.runtime.measure.record import Machine, Record, Timing
from autoddl.runtime.measure.schedule import Point, message_sizes, schedule
from autoddl.sbp.mesh import Mesh
from autoddl.tools.calibration.machine import fit_record
from tests.runtime.measure.synthetic import seconds

POINTS = schedule(Mesh(1, 4), message_sizes(1 << 26))


class Calibration:
    """A calibration of made-up seconds with a clock of its own; `noise` of the logarithms."""

    def __init__(self, limits: Limits, noise: float):
        self.record = Record("made up", "today", Machine(("a",), "a processor", 4), 1, 4, 0.95)
        self.limits, self.noise = limits, noise
        self.clock_s, self.visits = 0.0, list[Point]()
        self.told = []
        self._rng = np.random.default_rng(0)

    def run(self) -> None:
        limits, record = self.limits, self.record
        while point := next_point(record, POINTS, limits, limits.budget_s - self.clock_s):
            self.told.append(progress(record, POINTS, limits, point, self.clock_s))
            self.clock_s += visit_seconds(record, point, limits)
            timing = record.timings.setdefault(point, Timing(1))
            count = limits.next_count(len(timing.samples))
            noise = np.exp(self._rng.normal(0.0, self.noise, count))
            timing.samples += (seconds(point) * noise).tolist()
            if limits.is_done(timing.samples):
                timing.finish(limits.confidence)
            self.visits.append(point)
        stop(record, POINTS, limits, 1 << 40)


def test_a_quiet_machine_is_done_before_the_time_is_over():
    run = Calibration(Limits(), 0.01)
    run.run()
    assert run.record.done().keys() == set(POINTS) and not run.record.skipped
    assert run.clock_s < run.limits.budget_s / 2
    assert run.told[-1].done == len(POINTS) and run.told[-1].known is not None
    assert run.told[-1].known < 0.05


@pytest.mark.parametrize("budget_s", [5.0, 40.0])
def test_on_a_noisy_machine_the_time_is_kept_and_spent_on_what_costs_little(budget_s):
    run = Calibration(Limits(budget_s=budget_s), 0.5)
    run.run()
    assert 0.8 * budget_s < run.clock_s <= budget_s
    assert all(is_over(run.record, p) for p in POINTS)
    done = run.record.done()
    measured = [p for p in POINTS if p in done]
    firsts = list(dict.fromkeys(run.visits))
    assert firsts == measured  # in the schedule's order, small messages first
    repeats = [done[p].repeats for p in measured if p.kind == "all_gather"]
    assert repeats[0] > repeats[-1]
    assert fit_record(run.record).intra is not None
    for now in run.told:
        assert 0 <= now.left_s <= budget_s - now.spent_s
        assert (now.known is None) == (now.done < now.total == len(POINTS))
    counts = [now.done for now in run.told]
    assert counts == sorted(counts)
