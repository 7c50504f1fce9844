"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context
from .registry import kernel, simple

_CONVOLUTIONS = {"conv1d": _C.conv1d, "conv2d": _C.conv2d, "conv3d": _C.conv3d}
TRANSPOSED = {"conv1d": _C.deconv1d, "conv2d": _C.deconv2d, "conv3d": _C.deconv3d}

simple(
    {
        "matrix_vector_product": flow.matmul,
        "vector_matrix_product": flow.matmul,
        "dot": flow.dot,
        "inv": _C.inv,
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


@kernel(*(f"de{kind}" for kind in TRANSPOSED))
def transposed_conv(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in, weight) -> out."""
    x, weight = inputs
    apply = TRANSPOSED[ctx.spec.kind.removeprefix("de")]
    return [
        apply(
            x, weight, None, attrs["strides"], attrs["padding_before"], attrs["output_padding"],
            attrs["groups"], attrs["dilation_rate"], attrs["data_format"],
        )
    ]  # fmt: skip


def product_gradient(a: Tensor, b: Tensor, attrs: Attrs, dy: Tensor, index: int) -> Tensor:
    """da (index 0) or db (1)."""
    ta, tb, alpha = attrs["transpose_a"], attrs["transpose_b"], attrs["alpha"]
    flat = not ta and b.ndim == 2
    with flow.no_grad():
        if index == 0:
            da = _C.matmul(b, dy, tb, True, alpha) if ta else _C.matmul(dy, b, False, not tb, alpha)
            return _sum_to(da, a)
        x, g = (a.reshape(-1, a.shape[-1]), dy.reshape(-1, dy.shape[-1])) if flat else (a, dy)
        db = _C.matmul(g, x, True, ta, alpha) if tb else _C.matmul(x, g, not ta, False, alpha)
        return _sum_to(db, b)


def _sum_to(gradient: Tensor, like: Tensor) -> Tensor:
    """`gradient`, summed over the dims that `like` lacks or has of size 1."""
    missing = gradient.ndim - like.ndim
    if missing:
        gradient = gradient.sum(dim=tuple(range(missing)))
    wide = [d for d in range(like.ndim) if like.shape[d] == 1 and gradient.shape[d] != 1]
    return gradient.sum(dim=wide, keepdim=True) if wide else gradient


@kernel("linalg_cross")
def cross(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, y) -> out, of vectors along `dim`."""
    return [_C.linalg_cross(*inputs, dim=attrs["dim"])]


@kernel("grouped_matmul")
def grouped(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, weight, ends) -> rows by the matrix of their expert; plans of torch models have it."""
    x, weight, ends = inputs
    bounds = inner.rows_of_experts(ctx, ends.tolist(), x.shape[0], weight.shape[0])
    y = x[:, :1] * weight[0, :1] * 0  # zero, and all of it follows from x and weight
    parts = [y[: bounds[0]]]
    for expert, (start, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        parts.append(flow.matmul(x[start:end], weight[expert]) if end > start else y[:0])
    parts = [part for part in (*parts, y[bounds[-1] :]) if part.shape[0]]
    return [flow.cat(parts) if len(parts) > 1 else parts[0]]
