import pytest

import autoddl
from tests.clusters import cluster
from tests.graphs import mlp


def test_running_blocks_again_belongs_to_the_backward_pass():
    plan = autoddl.plan(
        mlp(16, (32, 64, 64, 64, 32)),
        cluster("gcp_a100", 1, 2),
        checkpointing="all",
        baselines=False,
    )
    assert plan.recomputed
    again, kept = plan.stage.price, plan.keeping_all().stage.price
    assert again.forward_s == pytest.approx(kept.forward_s)
    assert again.backward_s > kept.backward_s and again.stash_bytes < kept.stash_bytes
