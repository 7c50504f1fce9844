"""A small plan with redistributions."""

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from tests.clusters import cluster
from tests.graphs import residual

PLAN = find_plan(residual(2, 512, 1024), cluster("piz_daint", 2, 2), PlanOptions(seed=5))
