"""The vector-Jacobian product of one operator."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import oneflow as flow

from autoddl.runtime.execution.vjp import product, run_kernel
from autoddl.runtime.oneflow.backend import OneFlow


def gradients(function, inputs, given) -> Any:
    """Of all inputs of a kernel that computes `function`, from those of its outputs."""

    def kernel(ctx, inputs, attrs):
        return function(*inputs)

    context: Any = SimpleNamespace(updates={})
    record, outputs = run_kernel(OneFlow(), kernel, context, {}, inputs, [True] * len(inputs))
    assert record is not None and len(outputs) == len(given)
    return product(record, given)


def test_a_gradient_that_is_handed_on_is_not_copied():
    x, y, dy = flow.ones(3), flow.ones(3), flow.ones(3)
    dx, d2 = gradients(lambda x, y: [x + y], [x, y], [dy])
    assert dx is dy and d2 is dy


def test_an_input_that_no_output_depends_on_has_a_gradient_of_zeros():
    x, y, dy = flow.ones(3), flow.ones(2), flow.ones(3)
    dx, d2 = gradients(lambda x, y: [x * 2], [x, y], [dy])
    np.testing.assert_array_equal(dx.numpy(), [2, 2, 2])
    np.testing.assert_array_equal(d2.numpy(), [0, 0])


def test_outputs_that_nobody_uses_are_left_out():
    x, y, dy = flow.ones(1), flow.ones(1), flow.ones(1)
    for given, expected in (([None, None], [0, 0]), ([None, dy], [0, 3]), ([dy, dy], [2, 3])):
        found = gradients(lambda x, y: [x * 2, y * 3], [x, y], given)
        assert [g.item() for g in found] == expected


def test_an_output_may_be_an_input():
    x, y, dy = flow.ones(1), flow.ones(1), flow.ones(1)
    for function, expected in (
        (lambda x, y: [x, y * 3], [1, 3]),
        (lambda x, y: [x, x * 2], [3, 0]),
        (lambda x, y: [x, y], [1, 1]),
        (lambda x, y: [x, x], [2, 0]),
    ):
        assert [g.item() for g in gradients(function, [x, y], [dy, dy])] == expected
