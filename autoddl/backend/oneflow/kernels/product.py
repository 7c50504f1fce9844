"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from .registry import Context, kernel, simple

_CONVOLUTIONS = {"conv1d": _C.conv1d, "conv2d": _C.conv2d, "conv3d": _C.conv3d}

simple(
    {
        "matrix_vector_product": flow.matmul,
        "vector_matrix_product": flow.matmul,
        "dot": flow.dot,
    }
)


@kernel("matmul", "broadcast_matmul", "batch_matmul")
def matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(a, b) -> alpha a b, either transposed."""
    a, b = inputs
    return [_C.matmul(a, b, attrs["transpose_a"], attrs["transpose_b"], attrs["alpha"])]


@kernel(*_CONVOLUTIONS)
def conv(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in, weight) -> out."""
    return [convolve(ctx, inputs, attrs)]


def convolve(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Tensor:
    """The one output of `conv`."""
    x, weight = inputs
    return _CONVOLUTIONS[ctx.spec.kind](
        x,
        weight,
        None,
        stride=attrs["strides"],
        padding=attrs["padding_before"],
        dilation=attrs["dilation_rate"],
        groups=attrs["groups"],
        channel_pos=attrs["data_format"],
    )
