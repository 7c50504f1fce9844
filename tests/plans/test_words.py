import pytest

from tests.plans.example import PLAN


def test_explain_names_layers_alternatives_and_steps():
    text = PLAN.explain()
    assert "block*.fc*" in text or "block0.fc1" in text
    assert "next best" in text and "NIC" in text and "predicted" in text
    layer = PLAN.explain("block0.fc2")
    assert "block0.fc2" in layer and "NIC" in layer
    with pytest.raises(ValueError, match="block0.fc1"):
        PLAN.explain("nothing")
