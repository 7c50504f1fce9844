"""A plan on one mesh or in stages, as asked for."""

import pytest

from autoddl.planner.new_plan import new_plan
from autoddl.planner.planner import find_plan
from autoddl.planner.stages.staged_planner import find_staged_plan
from autoddl.plans.staged import StagedPlan, loads_plan
from tests.clusters import cluster
from tests.graphs import mlp

GRAPH = mlp(16, (32, 64, 64, 32))
CLUSTER = cluster("gcp_a100", 2, 2)


def test_without_stages_it_is_a_plan_for_one_mesh():
    assert new_plan(GRAPH, CLUSTER, optimizer="sgd") == find_plan(GRAPH, CLUSTER, optimizer="sgd")


@pytest.mark.parametrize(("stages", "count"), [(2, 2), ("auto", None)])
def test_stages(stages, count):
    found = new_plan(GRAPH, CLUSTER, stages, "gpipe", micro_batches=4)
    same = find_staged_plan(GRAPH, CLUSTER, stages=count, schedule="gpipe", micro_batches=4)
    assert found.dumps() == same.dumps()
    assert loads_plan(found.dumps()).dumps() == found.dumps()
    assert isinstance(found, StagedPlan) or count is None


@pytest.mark.parametrize("stages", [0, -1, "two", 1.5])
def test_what_is_no_number_of_stages_is_refused(stages):
    with pytest.raises(ValueError, match="stages must be a number"):
        new_plan(GRAPH, CLUSTER, stages)


def test_stages_choose_what_they_run_again():
    with pytest.raises(ValueError, match="cannot go with stages"):
        new_plan(GRAPH, CLUSTER, 2, checkpointing="all")


def test_stages_keep_to_no_gap():
    with pytest.raises(ValueError, match="cannot go with stages"):
        new_plan(GRAPH, CLUSTER, 2, gap=0.01)
