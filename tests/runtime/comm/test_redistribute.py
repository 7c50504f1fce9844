"""Steps on real processes give the layouts and values that they promise."""

import pytest


@pytest.mark.parametrize(
    ("nodes", "gpus", "shape", "every"),
    [
        pytest.param(2, 2, "8,4,4", 1, marks=pytest.mark.full),  # even
        (2, 2, "5,7,3", 2),  # uneven, also nested: 2, 1, 1, 1 over (S0, S0)
        pytest.param(1, 3, "3,7", 1, marks=pytest.mark.full),
        pytest.param(2, 4, "8,16", 7, marks=pytest.mark.full),
    ],
)
def test_every_step_keeps_the_tensor(launch, nodes, gpus, shape, every):
    out = launch("steps", nodes * gpus, str(nodes), str(gpus), shape, str(every))
    assert "checked" in out


@pytest.mark.parametrize(
    ("nodes", "gpus", "shape", "shares"),
    [
        (4, 1, "7,14", "4,2,1,0"),
        pytest.param(4, 1, "9,18", "5,2,1,1", marks=pytest.mark.full),
        pytest.param(2, 2, "8,16", "3,1", marks=pytest.mark.full),
        pytest.param(3, 1, "14,7", "4,2,1", marks=pytest.mark.full),
    ],
)
def test_every_step_keeps_the_tensor_in_unequal_pieces(launch, nodes, gpus, shape, shares):
    """Filled up, made equal first, and as they are."""
    out = launch("steps", nodes * gpus, str(nodes), str(gpus), shape, "1", shares)
    assert "checked" in out
