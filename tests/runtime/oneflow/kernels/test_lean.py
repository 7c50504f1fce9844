"""Kernels that keep little, or give each gradient by itself, against OneFlow's autograd."""

from typing import Any

import numpy as np
import oneflow as flow
import pytest

from autoddl.runtime.execution.vjp import product, run_kernel
from autoddl.runtime.oneflow.autograd import detached
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.runtime.oneflow.kernels.by_input import BY_INPUT
from autoddl.runtime.oneflow.kernels.lean import LEAN
from tests.runtime.oneflow.trace.evaluate import context


def tensor(*shape):
    return flow.tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def turned(x):
    return x.permute(*reversed(range(x.ndim)))


def views(shape):
    """A tensor, and views of others that begin inside their storage or run in another order."""
    inside = tensor(*(n + 2 for n in shape))
    for dim, n in enumerate(shape):
        inside = inside.narrow(dim, 1, n)
    return tensor(*shape), inside, turned(tensor(*reversed(shape)))


def matmul(kind, a, b, ta=False, tb=False, alpha=1.0):
    return kind, {"transpose_a": ta, "transpose_b": tb, "alpha": alpha}, a, b


def conv(x, w, stride=1, padding=0, dilation=1, groups=1):
    n = len(w) - 2
    attrs = {
        "kernel_size": list(w[2:]), "strides": [stride] * n, "padding_before": [padding] * n,
        "dilation_rate": [dilation] * n, "groups": groups, "data_format": "channels_first",
    }  # fmt: skip
    return f"conv{n}d", attrs, x, w


PRODUCTS = [
    *(
        matmul("matmul", (5, 3) if ta else (3, 5), (4, 5) if tb else (5, 4), ta, tb, 0.5)
        for ta in (False, True)
        for tb in (False, True)
    ),
    matmul("broadcast_matmul", (2, 6, 3, 5), (4, 5), tb=True),
    matmul("broadcast_matmul", (2, 3, 5), (5, 4)),
    matmul("broadcast_matmul", (2, 1, 3, 5), (6, 5, 4), alpha=0.5),
    matmul("batch_matmul", (6, 5, 3), (6, 5, 4), ta=True),
]
CONVOLUTIONS = [
    conv((2, 4, 9), (6, 4, 3), stride=2),
    conv((2, 4, 8, 7), (6, 2, 3, 3), stride=2, padding=1, groups=2),
    conv((2, 4, 9, 9), (6, 4, 3, 3), stride=3, padding=1, dilation=2),
    conv((1, 2, 5, 5, 5), (3, 2, 3, 3, 3), padding=1),
]
VIEWS = [
    ("reshape", {"shape": (6, 4)}, (2, 3, 4)),
    ("reshape", {"shape": ()}, (1,)),
    ("squeeze", {"axes": [1]}, (4, 1, 3)),
    ("expand_dims", {"axis": 1}, (4, 3)),
    ("transpose", {"perm": (2, 0, 1)}, (2, 3, 4)),
    ("transpose", {"perm": (0, -1, 1)}, (2, 3, 4)),
]
SUMS = [
    *(
        (kind, {}, a, b)
        for kind in ("broadcast_add", "broadcast_sub", "broadcast_mul")
        for a, b in [
            ((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (4,)), ((2, 3, 4), (2, 3, 1)), ((1,), (3, 4)),
            ((5, 1), (2, 1, 4)), ((2, 3, 1), (1,)), ((3, 1), (3, 4)),
        ]
    ),
    ("add_n", {}, (2, 3), (2, 3), (2, 3)),
    ("scalar_add", {"operand": 3}, (2, 3)),
    ("scalar_mul", {"operand": 0.5}, (2, 3)),
    ("reduce_sum", {"axis": [-1], "keepdims": True}, (2, 3, 4)),
    ("reduce_sum", {"axis": [2], "keepdims": False}, (2, 3, 4)),
    ("reduce_sum", {"axis": [0, 2], "keepdims": False}, (2, 3, 4)),
    ("var", {"dim": [-1], "unbiased": False, "keepdim": True}, (2, 3, 4)),
    ("var", {"dim": [2], "unbiased": True, "keepdim": False}, (2, 3, 4)),
    ("var", {"dim": [0, 1], "unbiased": True, "keepdim": False}, (2, 3, 4)),
]  # fmt: skip


def run(kernels, kind, attrs, inputs, wanted, later=frozenset()) -> tuple[Any, Any, list[Any]]:
    """What is kept for the backward pass, the output's gradient, and output and gradients."""
    made = context(kind, attrs, *(tuple(x.shape) for x in inputs))
    record, (y,) = run_kernel(OneFlow(), kernels[kind], made, attrs, inputs, wanted)
    assert record is not None and not y.requires_grad
    dy = turned(tensor(*y.shape[::-1]))  # a view as well
    gradients = zip(product(record, [dy], later=later), wanted, strict=True)
    return record, dy, [y, *(g if wants else None for g, wants in gradients)]


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [*PRODUCTS, *VIEWS, *SUMS], ids=str)
def test_gradients_are_autograds(case):
    kind, attrs, *shapes = case
    for inputs in zip(*map(views, shapes), strict=True):
        for wanted in ([True] * len(inputs), [False, True, True][-len(inputs) :]):
            found, expected = (run(k, kind, attrs, inputs, wanted)[2] for k in (LEAN, KERNELS))
            assert_equal(found, expected)


@pytest.mark.parametrize("case", [*PRODUCTS, *CONVOLUTIONS], ids=str)
def test_each_gradient_by_itself(case):
    kind, attrs, *shapes = case
    inputs = [tensor(*shape) for shape in shapes]
    _, _, expected = run(KERNELS, kind, attrs, inputs, [True, True])
    record, dy, (y, first, left_out) = run(
        BY_INPUT, kind, attrs, inputs, [True, True], frozenset({1})
    )
    assert left_out is None and record.by_input is not None
    assert_equal([y, first, record.by_input([dy], 1)], expected)


def test_a_detached_view_is_the_same_memory_and_so_are_views_of_it():
    x = tensor(4, 6)
    view = detached(x.requires_grad_().narrow(1, 2, 3))
    assert not view.requires_grad and view.is_leaf
    expected = x.numpy()[:, 2:5] + 1
    with flow.no_grad():
        x.add_(1)
    np.testing.assert_allclose(view.numpy(), expected)
    np.testing.assert_allclose(view.permute(1, 0).numpy(), expected.T)
    np.testing.assert_allclose(view.narrow(0, 1, 2).numpy(), expected[1:3])


def test_kinds_have_a_kernel_of_autograds_too():
    assert LEAN.keys() | BY_INPUT.keys() <= KERNELS.keys()
