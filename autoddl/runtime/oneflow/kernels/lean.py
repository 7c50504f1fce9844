"""Kernels that keep less for their backward pass than OneFlow's autograd does.

The executor runs these in the place of those of the same kinds:

    product   keeps its inputs as they came, where autograd keeps contiguous copies of views
    view      keeps nothing: its input's gradient is its output's in another shape or order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import RULES, Attrs, is_matmul
from ...kernel import ByInput, Context, Explicit, Kernel
from ..autograd import detached
from .product import product_gradient
from .registry import KERNELS


def matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """(a, b) -> alpha a b, either transposed."""
    wanted = [x.requires_grad for x in inputs]
    a, b = map(detached, inputs)
    with flow.no_grad():
        outputs = [_C.matmul(a, b, attrs["transpose_a"], attrs["transpose_b"], attrs["alpha"])]
    if not any(wanted):
        return outputs

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [
            product_gradient(a, b, attrs, dy, index) if wants else None
            for index, wants in enumerate(wanted)
        ]

    return Explicit(outputs, vjp)


def _view(kernel: Kernel, back: Callable[[Tensor, Sequence[int], Attrs], Tensor]) -> Kernel:
    """`kernel` with the gradient `back` (of the output's, the input's shape, the attributes)."""

    def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
        with flow.no_grad():
            result = kernel(ctx, inputs, attrs)
        assert not isinstance(result, Explicit | ByInput)
        shape = tuple(inputs[0].shape)

        def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
            (dy,) = grads
            assert dy is not None
            with flow.no_grad():
                return [back(dy, shape, attrs)]

        return Explicit([detached(y) for y in result], vjp)

    return run


def _reshaped(dy: Tensor, shape: Sequence[int], attrs: Attrs) -> Tensor:
    return dy.reshape(*shape)


def _transposed(dy: Tensor, shape: Sequence[int], attrs: Attrs) -> Tensor:
    perm = [dim % len(shape) for dim in attrs["perm"]]
    return dy.permute(*(perm.index(dim) for dim in range(len(shape))))


_BACK = {"reshape": _reshaped, "transpose": _transposed}
LEAN: dict[str, Kernel] = {
    **dict.fromkeys(filter(is_matmul, RULES), matmul),
    **{
        kind: _view(KERNELS[kind], _BACK[rule.view])
        for kind, rule in RULES.items()
        if rule.view in _BACK
    },
}
