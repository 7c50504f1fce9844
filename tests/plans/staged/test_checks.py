import pytest

from tests.clusters import cluster
from tests.graphs import mlp
from tests.plans.staged.example import MLP, STAGED


def test_another_model_or_cluster_is_refused():
    STAGED.check_model(MLP)
    with pytest.raises(ValueError, match="another model"):
        STAGED.check_model(mlp(16, (32, 64, 64, 32)))
    STAGED.check_cluster(cluster("gcp_a100", 2, 2))
    with pytest.raises(ValueError, match="plan for this cluster"):
        STAGED.check_cluster(cluster("laptop", 4, 1))
