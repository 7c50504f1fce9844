import pytest

from tests.plans.example import PLAN


def test_layers_share_out_the_whole_cost():
    layers = [PLAN.layer_cost(layer) for layer in PLAN.layers]
    assert sum(c.iteration_s for c in layers) == pytest.approx(PLAN.cost.iteration_s)
    assert sum(c.memory_bytes for c in layers) == pytest.approx(PLAN.cost.memory_bytes)
