import pytest

from autoddl.plans import Plan
from tests.clusters import cluster
from tests.graphs import mlp, residual
from tests.plans.example import PLAN


def test_a_path_that_leads_elsewhere_is_found():
    data = PLAN.to_json()
    edge = next(e for e in data["edges"] if e[2])
    edge[2] = []
    with pytest.raises(ValueError, match="inconsistent"):
        Plan.from_json(data)


def test_another_model_or_cluster_is_refused():
    PLAN.check_model(residual(2, 512, 1024))
    with pytest.raises(ValueError, match="another model"):
        PLAN.check_model(residual(3, 512, 1024))
    with pytest.raises(ValueError, match="another model"):
        PLAN.check_model(mlp(64, (8, 8)))
    PLAN.check_cluster(cluster("laptop", 2, 2))
    with pytest.raises(ValueError, match="with_shape"):
        PLAN.check_cluster(cluster("piz_daint", 4, 1))


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([["nothing"]], "no operator"),
        ([["block0.fc1.weight"]], "no operator"),
        ([["block0.fc1/matmul"], ["block0.fc1/matmul"]], "two blocks"),
    ],
)
def test_blocks_of_unknown_or_repeated_operators_are_refused(blocks, reason):
    with pytest.raises(ValueError, match=reason):
        Plan.from_json({**PLAN.to_json(), "recomputed": blocks})
