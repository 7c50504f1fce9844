"""A plan under other names is the plan that a search under these names would find."""

from autoddl.cost.model import CostModel
from autoddl.graph.cut import cut_graph
from autoddl.planner.mesh import plan_mesh
from autoddl.planner.options import PlanOptions
from autoddl.planner.tables.groups import MicroBatches
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import attention

CUT = cut_graph(attention(8, 8, 6, 16, 2), most_layers=8)
MODEL = CostModel(cluster("laptop", 2, 2))


def planned(graph):
    return plan_mesh(MicroBatches.of(graph), (1,), MODEL, PlanOptions(baselines=False)).stage


def test_equal_layers_under_other_names():
    first, second = (planned(CUT.stage(a, a + 2)) for a in (2, 4))
    found = first.for_equal(second.graph)
    assert found is not None and found != first
    assert (
        found == second
        or stage_figures(found).cost.iteration_s == stage_figures(second).cost.iteration_s
    )
    assert found.ops.keys() == second.ops.keys() and found.edges.keys() == second.edges.keys()
    assert [layer.name for layer in found.layers] == [layer.name for layer in second.layers]


def test_other_layers_are_refused():
    first = planned(CUT.stage(2, 4))
    assert first.for_equal(CUT.stage(0, 2).with_forks()) is None
    assert first.for_equal(CUT.stage(2, 5).with_forks()) is None
    assert first.for_equal(CUT.stage(4, 6).with_batch(4).with_forks()) is None
