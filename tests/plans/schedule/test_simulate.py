"""What transfers cost under each schedule, in closed form."""

import numpy as np
import pytest

from autoddl.plans.schedule.make import make_schedule
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import Queued, Slowdown, run, simulate


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("transfer_s", [0.0, 0.1, 0.5])
def test_what_transfers_cost_each_schedule(stages, groups, transfer_s):
    """Transfers beside computation: 1F1B waits for them, GPipe and eager-1F1B hide them.

    Of passes of 1 + 2 seconds and s stages, with m micro-batches,

        GPipe, eager-1F1B    3 (m + s - 1) + 2 (s - 1) x
        1F1B                 2 x (m (s - 1) / s - 1) more
    """
    parts = stages * groups
    flows = {(i, i + 1) for i in range(stages - 1)}
    costs = Costs.uniform(stages, flows, transfer_s=transfer_s)

    def seconds(name, overlap=True):
        schedule = make_schedule(name, stages, parts, flows=flows, costs=costs)
        return simulate(schedule, costs, overlap).makespan_s

    hidden = 3 * (parts + stages - 1) + 2 * (stages - 1) * transfer_s
    assert seconds("gpipe") == pytest.approx(hidden)
    assert seconds("eager-1f1b") == pytest.approx(hidden)
    waits = 2 * transfer_s * (parts * (stages - 1) / stages - 1)
    assert seconds("1f1b") == pytest.approx(hidden + waits)
    assert seconds("1f1b", overlap=False) <= seconds("gpipe", overlap=False) + 1e-9


def test_what_runs_at_once_takes_longer_and_the_rest_does_not():
    tasks = [Queued(1.0, (0,)), Queued(1.0, (1,))]
    starts, ends = run(tasks, Slowdown(0.5, 1.0))
    # computation is done after 1.5 s, beside 0.75 s of the collective, whose rest runs alone
    assert starts == [0.0, 0.0] and ends == [1.5, 1.75]
    tasks = [Queued(1.0, (0,)), Queued(1.0, (1,), (0,)), Queued(2.0, (0,)), Queued(1.0, (0, 1))]
    starts, ends = run(tasks, Slowdown(0.0, 1.0))
    assert starts == [0.0, 1.0, 1.0, 3.0] and ends == [1.0, 3.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="does not come before"):
        run([Queued(1.0, (0,), (1,)), Queued(1.0, (0,))], Slowdown(0.1))


def test_a_slowdown_never_makes_a_schedule_shorter_and_none_changes_nothing():
    rng = np.random.default_rng(0)
    for _ in range(200):
        tasks = []
        for number in range(rng.integers(1, 12)):
            queues = ((0,), (1,), (0, 1))[rng.integers(3)]
            needs = (
                tuple(int(n) for n in rng.integers(number, size=rng.integers(3))) if number else ()
            )
            tasks.append(Queued(float(rng.integers(4)), queues, needs))
        first, slower = (Slowdown(*(n + rng.random(2)).tolist()) for n in (0, 1))
        times = [run(tasks)[1], run(tasks, first)[1], run(tasks, slower)[1]]
        assert np.allclose(run(tasks, Slowdown(1e-15))[1], times[0])
        for quick, slow in zip(times, times[1:], strict=False):
            assert all(a <= b + 1e-9 for a, b in zip(quick, slow, strict=True))
