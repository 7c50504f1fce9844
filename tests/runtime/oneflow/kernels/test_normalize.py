"""Kernels that OneFlow has no CPU operator for, against their definitions; dropout."""

import numpy as np
import oneflow as flow
import pytest

from autoddl.runtime.kernel import ByInput, Explicit, RunState
from autoddl.runtime.oneflow.kernels import KERNELS
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import B, NdSbp, S
from tests.runtime.oneflow.trace.evaluate import WHOLE, context

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 6)).astype(np.float32)
GAMMA, BETA = RNG.standard_normal((2, 6)).astype(np.float32)
DY = flow.tensor(RNG.standard_normal((4, 6)).astype(np.float32))


def gradients(kind, attrs, *arrays):
    """Outputs and input gradients of a kernel, weighted by DY."""
    leaves = [flow.tensor(a).requires_grad_() for a in arrays]
    ctx = context(kind, attrs, *(a.shape for a in arrays), out=(4, 6))
    result = KERNELS[kind](ctx, leaves, attrs)
    if isinstance(result, Explicit):
        return result.outputs[0], result.vjp([DY])
    assert not isinstance(result, ByInput)
    return weighted(result[0], leaves)


def written_out(function, *arrays):
    leaves = [flow.tensor(a).requires_grad_() for a in arrays]
    return weighted(function(*leaves), leaves)


def weighted(out, leaves):
    """The output, and the gradients of its sum by the weights in DY."""
    out.backward(DY[:, : out.shape[1]])
    return out, [leaf.grad for leaf in leaves]


def layer_norm(x, gamma=None, beta=None):
    mean = x.mean(dim=1, keepdim=True)
    y = (x - mean) / flow.sqrt(((x - mean) ** 2).mean(dim=1, keepdim=True) + 1e-5)
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def rms_norm(x, weight):
    return x / flow.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) * weight


LAYER_NORM = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}


@pytest.mark.parametrize(
    ("kind", "attrs", "definition", "arrays"),
    [
        ("layer_norm", {**LAYER_NORM, "scale": False, "center": False}, layer_norm, (X,)),
        ("layer_norm", {**LAYER_NORM, "scale": True, "center": False}, layer_norm, (X, GAMMA)),
        ("layer_norm", {**LAYER_NORM, "scale": True, "center": True}, layer_norm, (X, GAMMA, BETA)),
        (
            "layer_norm",
            {**LAYER_NORM, "scale": False, "center": True},
            lambda x, beta: layer_norm(x, None, beta),
            (X, BETA),
        ),
        ("rms_norm", {"normalized_shape": (6,), "epsilon": 1e-5}, rms_norm, (X, GAMMA)),
        (
            "reduce_mean",
            {"axis": (1,), "keepdims": True, "count": 6},
            lambda x: x.mean(dim=1, keepdim=True),
            (X,),
        ),
    ],
)
def test_kernel_follows_its_definition(kind, attrs, definition, arrays):
    got, slopes = gradients(kind, attrs, *arrays)
    expected, expected_slopes = written_out(definition, *arrays)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    for a, b in zip(slopes, expected_slopes, strict=True):
        assert a is not None
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


def masks(mesh, nd, rank, **state):
    x = flow.ones(64, 64)
    ctx = context("dropout", {}, (64, 64), mesh=mesh, nd=nd, rank=rank, state=RunState(3, **state))
    result = KERNELS["dropout"](ctx, [x], {"rate": 0.25})
    assert isinstance(result, Explicit)
    out, dx = result.outputs[0].numpy(), result.vjp([x])[0]
    assert dx is not None
    np.testing.assert_array_equal(dx.numpy(), out)
    return out


def test_dropout_differs_on_shards_and_agrees_on_replicas():
    mesh, nd = Mesh(2, 2), NdSbp((S(0), B))
    drawn = [masks(mesh, nd, rank) for rank in range(4)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[2], drawn[3])
    assert 0.25 < np.mean(drawn[0] != drawn[2]) < 0.5  # 2 * 0.25 * 0.75 in the mean
    np.testing.assert_allclose(np.unique(drawn[0]), [0.0, 4.0 / 3.0], rtol=1e-6)
    assert abs(np.mean(drawn[0] == 0.0) - 0.25) < 0.03


def test_dropout_depends_on_step_and_micro_batch_and_stops_in_evaluation():
    mesh, nd = Mesh(1, 1), WHOLE
    first = masks(mesh, nd, 0)
    np.testing.assert_array_equal(first, masks(mesh, nd, 0))
    assert np.any(first != masks(mesh, nd, 0, step=1))
    assert np.any(first != masks(mesh, nd, 0, micro_batch=1))
    np.testing.assert_array_equal(masks(mesh, nd, 0, training=False), np.ones((64, 64)))
