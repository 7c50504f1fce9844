"""Plans of one model are compared layer by layer, in however many stages they are."""

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.diff import differences, report
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.plans.example import MLP, PLAN, STAGED


def test_one_mesh_beside_stages():
    whole = find_plan(MLP, cluster("laptop", 2, 2), PlanOptions(micro_batches=4))
    for first, second in ((whole, STAGED), (STAGED, whole)):
        found = differences(first, second)
        costs = [
            sum(stage_figures(s).cost.iteration_s for s in plan.stages) for plan in (first, second)
        ]
        hidden_s = [figures(plan).cost.hidden_s for plan in (first, second)]
        layers_s = sum(d.seconds for d in found) - (hidden_s[1] - hidden_s[0])
        assert layers_s == pytest.approx(costs[1] - costs[0])
        told = report(first, second).to_json()["plans"]
        assert (
            told["difference"]["seconds"]
            == figures(second).iteration_s - figures(first).iteration_s
        )
    assert not differences(STAGED, STAGED)


def test_plans_of_two_models_have_nothing_to_compare():
    with pytest.raises(ValueError, match="only plans of one model"):
        differences(PLAN, STAGED)
