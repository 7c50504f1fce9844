"""What transfers cost under each schedule, in closed form."""

import pytest

from autoddl.plans.schedule.make import make_schedule
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate


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
