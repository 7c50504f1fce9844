"""Kernels that keep little: the results are those of OneFlow's autograd, and views stay views."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

flow = pytest.importorskip("oneflow", reason="runs OneFlow kernels")

from autoddl.runtime.execution.vjp import product, run_kernel  # noqa: E402
from autoddl.runtime.oneflow.backend import OneFlow  # noqa: E402
from autoddl.runtime.oneflow.detach import detached  # noqa: E402
from autoddl.runtime.oneflow.kernels import KERNELS  # noqa: E402
from autoddl.runtime.oneflow.kernels.lean import LEAN  # noqa: E402


def tensor(*shape):
    return flow.tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def views(x):
    """A tensor, and views of others that begin inside their storage or run in another order."""
    wide = tensor(*(n + 2 for n in x.shape))
    inside = wide
    for dim, n in enumerate(x.shape):
        inside = inside.narrow(dim, 1, n)
    yield from (x, inside, tensor(*reversed(x.shape)).permute(*reversed(range(x.ndim))))


def product_attrs(ta=False, tb=False, alpha=1.0):
    return {"transpose_a": ta, "transpose_b": tb, "alpha": alpha}


CASES = [
    ("matmul", product_attrs(tb=True), (3, 5), (4, 5)),
    ("broadcast_matmul", product_attrs(), (2, 3, 5), (5, 4)),
    ("broadcast_matmul", product_attrs(alpha=0.5), (2, 1, 3, 5), (6, 5, 4)),
    ("batch_matmul", product_attrs(ta=True), (6, 5, 3), (6, 5, 4)),
    ("reshape", {"shape": (6, 4)}, (2, 3, 4)),
    ("reshape", {"shape": ()}, (1,)),
    ("squeeze", {"axes": [1]}, (4, 1, 3)),
    ("expand_dims", {"axis": 1}, (4, 3)),
    ("transpose", {"perm": (2, 0, 1)}, (2, 3, 4)),
    ("transpose", {"perm": (0, -1, 1)}, (2, 3, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_autograds(case):
    kind, attrs, *shapes = case
    for inputs in zip(*(views(tensor(*shape)) for shape in shapes), strict=True):
        for wanted in ([True] * len(inputs), [False, True][-len(inputs) :]):
            found, expected = (
                run(kernels[kind], attrs, inputs, wanted) for kernels in (LEAN, KERNELS)
            )
            for ours, theirs in zip(found, expected, strict=True):
                if theirs is None:
                    assert ours is None
                else:
                    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def run(kernel, attrs, inputs, wanted) -> list[Any]:
    """The output and the gradients of the inputs."""
    context: Any = SimpleNamespace(updates={}, spec=SimpleNamespace(kind="any"))
    record, (y,) = run_kernel(OneFlow(), kernel, context, attrs, inputs, wanted)
    assert record is not None and not y.requires_grad
    dy = tensor(*y.shape[::-1]).permute(*reversed(range(y.ndim)))  # a view as well
    taken = product(record, [dy])
    given = [g if wants else None for g, wants in zip(taken, wanted, strict=True)]
    return [y.numpy(), *(None if g is None else g.numpy() for g in given)]


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
    assert LEAN.keys() <= KERNELS.keys()
