"""Views by their strides, against NumPy's."""

import itertools

import numpy as np
import pytest

from autoddl.cost.step_tensors import (
    contiguous,
    gradient_strides,
    is_contiguous,
    reshaped,
    view_strides,
)
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.signature import OpSpec

SHAPES = [(24,), (2, 12), (4, 6), (2, 3, 4), (1, 4, 6), (4, 1, 6), (2, 2, 6), (2, 2, 1, 3, 2)]


def strides_of(x: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // x.itemsize for stride in x.strides)


def views():
    for shape in SHAPES:
        x = np.zeros(shape)
        for perm in itertools.permutations(range(len(shape))):
            yield x.transpose(perm)
    wide = np.zeros((2, 3, 8))
    yield from (wide[:, :, 2:6], wide[:, 1:2], wide[1:], np.broadcast_to(wide[:, :, :1], (2, 3, 8)))


@pytest.mark.parametrize("x", list(views()), ids=lambda x: f"{x.shape}{strides_of(x)}")
def test_a_reshape_is_a_view_where_numpys_is(x):
    assert is_contiguous(x.shape, strides_of(x)) == x.flags.c_contiguous
    for target in (s for s in (*SHAPES, (2, 3, 2, 4), (6, 8), (48,)) if np.prod(s) == x.size):
        found = reshaped(x.shape, strides_of(x), target)
        y = x.reshape(target)
        assert (found is None) == (not np.shares_memory(x, y)), target
        if found is not None:
            wide = [n != 1 for n in target]
            expected = [s for s, w in zip(strides_of(y), wide, strict=True) if w]
            assert [s for s, w in zip(found, wide, strict=True) if w] == expected


def spec(kind, shape, target, **attrs) -> OpSpec:
    return OpSpec(kind, attrs, (TensorSpec(shape),), (TensorSpec(target),))


def test_a_transpose_and_its_gradient():
    op = spec("transpose", (2, 3, 4), (4, 2, 3), perm=(2, 0, 1))
    assert view_strides(op, contiguous((2, 3, 4))) == (1, 12, 4)
    assert gradient_strides(op, contiguous((4, 2, 3))) == (3, 1, 6)


def test_narrow_and_expand_are_views_whose_gradients_are_none():
    narrow = spec("narrow", (2, 6), (2, 3), dim=1, start=3, length=3)
    assert view_strides(narrow, (6, 1)) == (6, 1)
    assert gradient_strides(narrow, (3, 1)) is None
    expand = spec("expand", (3, 1), (5, 3, 4), expand_shape=(5, 3, 4))
    assert view_strides(expand, (1, 1)) == (0, 1, 0)
    assert gradient_strides(expand, (12, 4, 1)) is None


def test_other_kinds_are_no_views():
    assert view_strides(spec("relu", (2, 3), (2, 3)), (3, 1)) is None
    assert view_strides(spec("reshape", (2, 3), (6,)), (1, 2)) is None
    assert view_strides(spec("fork", (2, 3), (2, 3)), (1, 2)) == (1, 2)
