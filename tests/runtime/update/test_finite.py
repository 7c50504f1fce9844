"""One number tells whether all elements of all tensors are finite."""

import numpy as np
import pytest

from autoddl.runtime.update.finite import health
from tests.exactness.numpy_backend import NumPy, World


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [(100.0, True), (-6e4, True), (np.inf, False), (-np.inf, False), (np.nan, False)],
)
def test_elements_count_and_not_their_sum(dtype, value, expected):
    """Sums of float16 are soon infinite: 100 times 1,000."""
    same, one = np.full(1000, value, dtype), np.ones(3, dtype)
    opposite = np.concatenate([same, -same])
    with np.errstate(invalid="ignore"):
        for tensors in ([one, same], [opposite]):
            (found,) = health(tensors, NumPy(World(1), 0))
            assert np.isfinite(found) == expected


def test_nothing_is_finite():
    assert health([], NumPy(World(1), 0)).tolist() == [0.0]
