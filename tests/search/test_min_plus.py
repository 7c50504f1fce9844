import numpy as np
import pytest

from autoddl._native.library import loops
from autoddl.search.elimination import min_plus, on_arrays


def test_min_plus_is_the_definition():
    rng = np.random.default_rng(0)
    left, node, right = rng.random((4, 5)), rng.random(5), rng.random((5, 3))
    expected = np.min(left[:, :, None] + node[None, :, None] + right[None, :, :], axis=1)
    assert min_plus(left, node, right) == pytest.approx(expected)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 0, 2), (0, 3, 2), (2, 3, 0), (7, 4, 5), (9, 6, 17), (70, 80, 90)]
)
def test_compiled_code_and_arrays_give_the_same_bits(shape):
    rows, inner, columns = shape
    rng = np.random.default_rng(rows)
    left, right = rng.random((rows, inner)), rng.random((inner, columns))
    left[rng.random(left.shape) < 0.3] = np.inf
    right[rng.random(right.shape) < 0.3] = np.inf
    node = rng.random(inner) * 1e3
    found = on_arrays(left, node, right)
    assert found.dtype == np.float32
    compiled = loops()
    if compiled is not None:
        assert np.array_equal(compiled.min_plus(left, node, right), found)
    weighted = left + node
    expected = (weighted[:, :, None] + right[None, :, :]).min(axis=1, initial=np.inf)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("which", range(4))
def test_tables_may_be_turned_and_in_single_precision(which):
    rng = np.random.default_rng(which)
    left, node, right = rng.random((9, 6)), rng.random(6), rng.random((17, 6)).T
    left, right = (
        table.astype(np.float32) if which & bit else table for table, bit in ((left, 1), (right, 2))
    )
    assert np.array_equal(min_plus(left, node, right), on_arrays(left, node, right))
