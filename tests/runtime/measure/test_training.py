"""Predicted against measured, in training."""

import pytest

from autoddl.runtime.measure.training import Compared


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_slow_is_named_once(launch, stages):
    """A kernel sleeps: computation is off. What was communicated is timed again."""
    pytest.importorskip("oneflow", reason="needs OneFlow")
    assert "computation" in launch("measured", 4, str(stages))


def test_off_is_far_in_ratio_and_in_size():
    assert Compared(1.0, 1.4).is_off(0.1)
    assert Compared(1.4, 1.0).is_off(0.1)
    assert not Compared(1.0, 1.25).is_off(0.1)
    assert not Compared(0.01, 0.1).is_off(0.1)
    assert Compared(0.0, 1.0).is_off(0.1)
    assert str(Compared(0.01, 0.03)) == "30 ms instead of 10 ms (3 times)"
    assert str(Compared(0.0, 2e6, "bytes")) == "2 MB instead of 0 B"
