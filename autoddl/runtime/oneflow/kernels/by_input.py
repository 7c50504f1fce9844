"""Heavy operators whose backward pass has two halves: for their inputs, and for their weights.

A schedule that delays weight gradients (ZB-H1, or `delay`) runs these in the place of the kernels
of the same kinds, whose gradients come all at once:

    y = alpha a b             da = alpha dy b^T              db = alpha a^T dy
    y = conv(x, w)            dx = transposed conv(dy, w)    dw by autograd, which sees w alone

What an input was broadcast over is summed.
"""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import RULES, Attrs, is_matmul
from ...kernel import ByInput, Context, Kernel
from ..autograd import detached
from .product import TRANSPOSED, convolve, product_gradient


def matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
    """(a, b) -> alpha a b, either transposed."""
    a, b = map(detached, inputs)

    def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
        (dy,) = grads
        assert dy is not None
        return product_gradient(a, b, attrs, dy, index)

    with flow.no_grad():
        transposed = attrs["transpose_a"], attrs["transpose_b"]
        return ByInput([_C.matmul(a, b, *transposed, attrs["alpha"])], gradient)


def convolution(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
    """(in, weight) -> out."""
    x = detached(inputs[0])
    weight = detached(inputs[1]).requires_grad_()
    with flow.enable_grad():
        y = convolve(ctx, [x, weight], attrs)
    kernel, strides = attrs["kernel_size"], attrs["strides"]
    padding, dilation = attrs["padding_before"], attrs["dilation_rate"]
    first = 1 if attrs["data_format"] == "channels_last" else 2
    # rows at the end that no window reaches
    rest = [
        (n + 2 * p - d * (k - 1) - 1) % s
        for n, k, s, p, d in zip(x.shape[first:], kernel, strides, padding, dilation, strict=False)
    ]

    def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
        (dy,) = grads
        assert dy is not None
        if index == 1:
            (dw,) = flow.autograd.grad([y], [weight], [dy])
            return dw
        with flow.no_grad():
            return TRANSPOSED[ctx.spec.kind](
                dy, detached(weight), None, strides, padding, rest,
                attrs["groups"], dilation, attrs["data_format"],
            )  # fmt: skip

    return ByInput([detached(y)], gradient)


BY_INPUT: dict[str, Kernel] = {
    **dict.fromkeys(filter(is_matmul, RULES), matmul),
    **dict.fromkeys(TRANSPOSED, convolution),
}
