import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp


def test_running_blocks_again_belongs_to_the_backward_pass():
    plan = find_plan(
        mlp(16, (32, 64, 64, 64, 32)),
        cluster("gcp_a100", 1, 2),
        PlanOptions(checkpointing="all", baselines=False),
    )
    assert plan.recomputed
    again, kept = stage_figures(plan.stage).price, stage_figures(plan.keeping_all().stage).price
    assert again.forward_s == pytest.approx(kept.forward_s)
    assert again.backward_s > kept.backward_s and again.stash_bytes < kept.stash_bytes
