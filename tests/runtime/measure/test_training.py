"""Predicted against measured, in training."""

import pytest

from autoddl.runtime.measure.training import Compared


@pytest.mark.parametrize(
    ("stages", "chunks"),
    [*(pytest.param(*one, marks=pytest.mark.full) for one in ((1, 1), (2, 1))), (2, 2)],
)
def test_what_is_slow_is_named_once(launch, stages, chunks):
    """A kernel sleeps, which the step and its parts show. What was communicated is timed again."""
    pytest.importorskip("oneflow", reason="needs OneFlow")
    assert "measured: after 10 steps" in launch("measured", 4, str(stages), str(chunks))


def test_off_is_far_in_ratio_and_in_size():
    assert Compared(1.0, 1.4).is_off(0.1)
    assert Compared(1.4, 1.0).is_off(0.1)
    assert not Compared(1.0, 1.25).is_off(0.1)
    assert not Compared(0.01, 0.1).is_off(0.1)
    assert Compared(0.0, 1.0).is_off(0.1)
    assert str(Compared(0.01, 0.03)) == "30 ms instead of 10 ms (3 times)"
    assert str(Compared(0.01, 1.4)) == "1.4 s instead of 10 ms (140 times)"
    assert str(Compared(0.0, 2e6, "bytes")) == "2 MB instead of 0 B"
