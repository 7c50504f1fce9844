"""A small plan with two stages."""

from autoddl.options import PlanOptions
from autoddl.staged_plan import StagedPlan
from autoddl.staged_planner import find_staged_plan
from tests.clusters import cluster
from tests.graphs import mlp

MLP = mlp(16, (32, 64, 64, 64, 32))


def planned() -> StagedPlan:
    plan = find_staged_plan(MLP, cluster("laptop", 2, 2), PlanOptions(stages=2, micro_batches=4))
    assert isinstance(plan, StagedPlan)
    return plan


STAGED = planned()
