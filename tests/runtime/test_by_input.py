"""Heavy operators with a gradient for each input by itself repeat OneFlow's own operators."""

import numpy as np
import pytest

flow = pytest.importorskip("oneflow", reason="needs OneFlow")

from autoddl.graph.placed import PlannedOp  # noqa: E402
from autoddl.runtime.execution.vjp import product, run_kernel  # noqa: E402
from autoddl.runtime.kernel import ByInput, Context, RunState  # noqa: E402
from autoddl.runtime.oneflow.backend import OneFlow  # noqa: E402
from autoddl.runtime.oneflow.kernels import KERNELS  # noqa: E402
from autoddl.runtime.oneflow.kernels.by_input import BY_INPUT  # noqa: E402
from autoddl.sbp.layout import TensorSpec  # noqa: E402
from autoddl.sbp.mesh import Mesh  # noqa: E402
from autoddl.sbp.placement import NdSbp  # noqa: E402
from autoddl.sbp.signature import OpSpec  # noqa: E402


def matmul(kind, a, b, ta=False, tb=False, alpha=1.0):
    return kind, {"transpose_a": ta, "transpose_b": tb, "alpha": alpha}, a, b


def conv(x, w, stride=1, padding=0, dilation=1, groups=1):
    n = len(w) - 2
    attrs = {
        "kernel_size": list(w[2:]), "strides": [stride] * n, "padding_before": [padding] * n,
        "dilation_rate": [dilation] * n, "groups": groups, "data_format": "channels_first",
    }  # fmt: skip
    return f"conv{n}d", attrs, x, w


CASES = [
    *(
        matmul("matmul", (5, 3) if ta else (3, 5), (4, 5) if tb else (5, 4), ta, tb, 0.5)
        for ta in (False, True)
        for tb in (False, True)
    ),
    matmul("broadcast_matmul", (2, 6, 3, 5), (4, 5), tb=True),
    matmul("broadcast_matmul", (2, 3, 5), (5, 4)),
    matmul("broadcast_matmul", (2, 1, 3, 5), (6, 5, 4)),
    matmul("batch_matmul", (6, 5, 3), (6, 5, 4), ta=True),
    conv((2, 4, 9), (6, 4, 3), stride=2),
    conv((2, 4, 8, 7), (6, 2, 3, 3), stride=2, padding=1, groups=2),
    conv((2, 4, 9, 9), (6, 4, 3, 3), stride=3, padding=1, dilation=2),
    conv((1, 2, 5, 5, 5), (3, 2, 3, 3, 3), padding=1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_gradient_by_itself(case):
    kind, attrs, *shapes = case
    rng = np.random.default_rng(0)
    inputs = [flow.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    spec = OpSpec(kind, attrs, tuple(TensorSpec(s) for s in shapes), ())
    one = NdSbp(())
    planned = PlannedOp("op", (one, one), (one,), (one,), (one, one))
    context = Context("op", spec, planned, Mesh(1, 1), 0, RunState(seed=0))
    own, whole = (
        run_kernel(OneFlow(), kernels[kind], context, attrs, inputs, [True, True])
        for kernels in (BY_INPUT, KERNELS)
    )
    assert np.allclose(own[1][0].numpy(), whole[1][0].numpy(), atol=1e-5)
    dy = flow.tensor(rng.standard_normal(own[1][0].shape).astype(np.float32))
    assert own[0] is not None and whole[0] is not None
    expected = [g.numpy() for g in product(whole[0], [dy]) if g is not None]
    first, left_out = product(own[0], [dy], later={1})
    assert first is not None and left_out is None
    assert isinstance(own[0].by_input, ByInput)
    found = [first, own[0].by_input.gradient([dy], 1)]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.allclose(ours.numpy(), theirs, atol=1e-4)


def test_kinds_have_a_whole_kernel_too():
    assert BY_INPUT.keys() <= KERNELS.keys()
