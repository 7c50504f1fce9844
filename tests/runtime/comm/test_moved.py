"""What travels takes the memory that a plan counts for it; of PyTorch: tests/pytorch."""

import pytest


@pytest.mark.full
def test_a_step_holds_what_is_counted(launch):
    """Of each kind of step, even and uneven."""
    assert launch("moved", 4).count("checked") == 4
