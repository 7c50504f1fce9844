"""Plans of one mesh, by what follows from them: seconds, bytes, memory."""

from typing import Any

from autoddl.cluster.spec import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import Space
from autoddl.plans.stage_figures import StageFigures, stage_figures


def planned(
    graph: Graph, where: Cluster, space: Space | None = None, **options: Any
) -> StageFigures:
    """Of the plan that is found, without known schemes beside it; `stage` is that plan."""
    asked = PlanOptions(**{"baselines": False, **options})
    return stage_figures(find_plan(graph, where, asked, space=space).stage)
