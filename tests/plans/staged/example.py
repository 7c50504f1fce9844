"""A small plan with two stages."""

from autoddl.planner.options import PlanOptions
from autoddl.planner.stages.staged_planner import find_staged_plan
from autoddl.plans.staged import StagedPlan
from tests.clusters import cluster
from tests.graphs import mlp

MLP = mlp(16, (32, 64, 64, 64, 32))


def planned() -> StagedPlan:
    plan = find_staged_plan(MLP, cluster("laptop", 2, 2), PlanOptions(stages=2, micro_batches=4))
    assert isinstance(plan, StagedPlan)
    return plan


STAGED = planned()
