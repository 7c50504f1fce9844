"""Small plans: on one mesh, with redistributions and what overlaps or without, in two stages."""

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from tests.clusters import cluster
from tests.graphs import mlp, residual

MODEL = residual(2, 512, 1024)
PLAN = find_plan(MODEL, cluster("piz_daint", 2, 2), PlanOptions(seed=5))
SERIAL = find_plan(MODEL, cluster("piz_daint", 2, 2), PlanOptions(overlap=False))
MLP = mlp(16, (32, 64, 64, 64, 32))


def in_stages() -> Plan:
    return find_plan(MLP, cluster("laptop", 2, 2), PlanOptions(stages=2, micro_batches=4))


STAGED = in_stages()
BOTH = {"one mesh": PLAN, "stages": STAGED}
