"""A plan under other names is the plan that a search under these names would find."""

from autoddl.graph.cut import cut_graph
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import attention

CUT = cut_graph(attention(8, 8, 6, 16, 2), most_layers=8)
MACHINE = cluster("laptop", 2, 2)


def test_equal_layers_under_other_names():
    first, second = (
        find_plan(CUT.stage(a, a + 2), MACHINE, PlanOptions(micro_batches=1, baselines=False)).stage
        for a in (2, 4)
    )
    found = first.for_equal(second.graph)
    assert found is not None and found != first
    assert (
        found == second
        or stage_figures(found).cost.iteration_s == stage_figures(second).cost.iteration_s
    )
    assert found.ops.keys() == second.ops.keys() and found.edges.keys() == second.edges.keys()
    assert [layer.name for layer in found.layers] == [layer.name for layer in second.layers]


def test_other_layers_are_refused():
    first = find_plan(CUT.stage(2, 4), MACHINE, PlanOptions(micro_batches=1, baselines=False)).stage
    assert first.for_equal(CUT.stage(0, 2).with_forks()) is None
    assert first.for_equal(CUT.stage(2, 5).with_forks()) is None
    assert first.for_equal(CUT.stage(4, 6).with_batch(4).with_forks()) is None
