"""Plans of one model are compared layer by layer, in however many stages they are."""

import re

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.diff import differences, report
from autoddl.plans.figures import figures
from autoddl.plans.report.layers import KEEPS
from autoddl.plans.report.terminal import explain, text
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.example import PLAN, STAGED


def test_one_mesh_beside_stages():
    """What stages hide counts, too; the memory that plans need stands beside what layers keep."""
    layers, where = mlp(512, (64, 256, 128, 256, 64)), cluster("laptop", 2, 2)
    staged = find_plan(layers, where, PlanOptions(stages=2, micro_batches=2, baselines=False))
    whole = find_plan(layers, where, PlanOptions(micro_batches=2, baselines=False))
    assert any(stage_figures(stage).cost.hidden_s for stage in staged.stages)
    for first, second in ((whole, staged), (staged, whole)):
        told = report(first, second).to_json()
        costs = [
            sum(stage_figures(s).cost.iteration_s for s in plan.stages) for plan in (first, second)
        ]
        assert sum(row["seconds"] for row in told["layers"]) == pytest.approx(costs[1] - costs[0])
        more, known = told["plans"]["difference"], (figures(first), figures(second))
        assert more["seconds"] == known[1].iteration_s - known[0].iteration_s
        assert more["needed_bytes"] == max(known[1].needed_bytes) - max(known[0].needed_bytes)
        printed = text(report(first, second))
        assert re.search(r"^a: .*\nb: .*\nb less a", printed, re.MULTILINE) and KEEPS in printed
        assert "estimates in laptop" in printed
        assert "estimates in laptop" in explain(first, first.layers[0].name)
    assert not differences(staged, staged)


def test_plans_of_two_models_have_nothing_to_compare():
    with pytest.raises(ValueError, match="only plans of one model"):
        differences(PLAN, STAGED)
