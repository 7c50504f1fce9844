"""Matrix products, attention, convolutions, pooling and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....sbp.signature import RULES, Attrs, is_matmul
from ...comm import inner
from ...kernel import ByInput, Context, Kernel
from .plain import of_attrs, of_inputs


def multiply(a: Tensor, b: Tensor, attrs: Attrs) -> Tensor:
    """alpha a b, either transposed."""
    left = a.mT if attrs["transpose_a"] else a
    if b.ndim == 2 and attrs["transpose_b"]:
        y = F.linear(left, b)
    else:
        y = torch.matmul(left, b.mT if attrs["transpose_b"] else b)
    return y if attrs["alpha"] == 1 else y * attrs["alpha"]


def product_gradient(a: Tensor, b: Tensor, attrs: Attrs, dy: Tensor, index: int) -> Tensor:
    """da (index 0) or db (1)."""
    return _gradient(b if index == 0 else a, (a.shape, b.shape), attrs, dy, index)


def _gradient(
    other: Tensor, shapes: tuple[torch.Size, ...], attrs: Attrs, dy: Tensor, index: int
) -> Tensor:
    """The gradient of input `index`, from the other input."""
    ta, tb, alpha = attrs["transpose_a"], attrs["transpose_b"], attrs["alpha"]
    with torch.no_grad():
        if index == 0:
            found = (
                torch.matmul(other.mT if tb else other, dy.mT)
                if ta
                else torch.matmul(dy, other if tb else other.mT)
            )
        else:
            if not ta and len(shapes[1]) == 2:
                other, dy = other.reshape(-1, other.shape[-1]), dy.reshape(-1, dy.shape[-1])
            left = other if ta else other.mT
            found = torch.matmul(dy.mT, left.mT) if tb else torch.matmul(left, dy)
        if alpha != 1:
            found = found * alpha
        # summed over the dims along which the input was stretched
        return found.sum_to_size(shapes[index]) if found.shape != shapes[index] else found


def matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
    """(a, b) -> alpha a b, either transposed; its two gradients come apart.

    An input is kept only if the gradient of the other one is wanted.
    """
    a, b = (x.detach() for x in inputs)
    shapes = a.shape, b.shape
    with torch.no_grad():
        y = multiply(a, b, attrs)
    others = [b if inputs[0].requires_grad else None, a if inputs[1].requires_grad else None]

    def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
        dy, other = grads[0], others[index]
        assert dy is not None and other is not None
        return _gradient(other, shapes, attrs, dy, index)

    return ByInput([y], gradient)


def recorded_matmul(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """`matmul`, whose gradients are left to autograd."""
    a, b = inputs
    return [multiply(a, b, attrs)]


def grouped(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, weight, ends) -> rows of x by the matrix of their expert, zero where a shard has none."""
    x, weight, ends = inputs
    bounds = inner.rows_of_experts(ctx, ends.tolist(), len(x), len(weight))
    pairs = zip(weight.unbind(0), bounds, bounds[1:], strict=False)
    y = torch.cat([x[start:end] @ matrix for matrix, start, end in pairs])
    return [F.pad(y, (0, 0, bounds[0], len(x) - bounds[-1]))]


# ---- attention


def attention(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(q, k, v, mask?) -> softmax(q k^T scale + mask) v."""
    q, k, v, *masks = inputs
    mask = masks[0] if masks else None
    if mask is not None and attrs["causal"]:  # ATen takes one of them
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        far = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, float("-inf"))
        mask = mask & seen if mask.dtype == torch.bool else mask + far
    return [
        F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=attrs["causal"] and not masks, scale=attrs["scale"],
            enable_gqa=q.shape[1] != k.shape[1],
        )
    ]  # fmt: skip


# ---- convolutions

_CONVOLUTIONS: dict[str, Any] = {"conv1d": F.conv1d, "conv2d": F.conv2d, "conv3d": F.conv3d}
_TRANSPOSED: dict[str, Any] = {
    "deconv1d": F.conv_transpose1d,
    "deconv2d": F.conv_transpose2d,
    "deconv3d": F.conv_transpose3d,
}


def _first(x: Tensor, attrs: Attrs) -> Tensor:
    """`x` with its channels as dim 1."""
    return x.movedim(-1, 1) if attrs["data_format"] == "channels_last" else x


def _back(x: Tensor, attrs: Attrs) -> Tensor:
    return x.movedim(1, -1) if attrs["data_format"] == "channels_last" else x


def conv(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in, weight) -> out."""
    window = attrs["strides"], attrs["padding_before"], attrs["dilation_rate"], attrs["groups"]
    x, weight = (_first(x, attrs) for x in inputs)
    return [_back(_CONVOLUTIONS[ctx.spec.kind](x, weight, None, *window), attrs)]


def conv_by_input(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> ByInput:
    """`conv`, whose two gradients come apart."""
    x, weight = (_first(x.detach(), attrs) for x in inputs)
    with torch.no_grad():
        outputs = conv(ctx, inputs, attrs)
    dims = x.ndim - 2
    rest = False, [0] * dims, attrs["groups"]

    def gradient(grads: Sequence[Tensor | None], index: int) -> Tensor:
        (dy,) = grads
        assert dy is not None
        window = list(attrs["strides"]), list(attrs["padding_before"]), list(attrs["dilation_rate"])
        mask = [index == 0, index == 1, False]
        found = torch.ops.aten.convolution_backward(
            _first(dy, attrs), x, weight, None, *window, *rest, mask
        )
        return _back(found[index], attrs)

    return ByInput(outputs, gradient)


def transposed_conv(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in, weight) -> out."""
    x, weight = inputs
    window = attrs["strides"], attrs["padding_before"], attrs["output_padding"], attrs["groups"]
    apply = _TRANSPOSED[ctx.spec.kind]
    return [_back(apply(_first(x, attrs), weight, None, *window, attrs["dilation_rate"]), attrs)]


# ---- windows


def max_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y, or the indices of the maxima."""
    kind, indices, _ = ctx.spec.kind.partition("_indices")
    pool: Any = getattr(F, kind.replace("pool_", "pool"))
    window = attrs["kernel_size"], attrs["stride"], attrs["padding"], attrs["dilation"]
    found = pool(
        _first(inputs[0], attrs), *map(tuple, window), ceil_mode=attrs["ceil_mode"],
        return_indices=bool(indices),
    )  # fmt: skip
    return [_back(found[1] if indices else found, attrs)]


def max_unpool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, indices) -> y of the size of the images that were pooled."""
    unpool: Any = getattr(F, ctx.spec.kind.replace("pool_", "pool"))
    window = attrs["kernel_size"], attrs["stride"], attrs["padding"]
    size = (*inputs[0].shape[:2], *ctx.spec.outputs[0].shape[2:])
    return [unpool(*inputs, *map(tuple, window), output_size=size)]


def avg_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y."""
    dims = len(attrs["kernel_size"])
    pool: Any = getattr(F, f"avg_pool{dims}d")
    window = map(tuple, (attrs["kernel_size"], attrs["stride"], attrs["padding"]))
    more = [attrs["ceil_mode"], attrs["count_include_pad"]]
    if dims > 1:
        more.append(attrs["divisor_override"] or None)
    return [_back(pool(_first(inputs[0], attrs), *window, *more), attrs)]


def adaptive_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y of `output_size`."""
    size: list[int] = list(attrs["output_size"])
    pool: Any = getattr(F, ctx.spec.kind)
    return [pool(inputs[0], size if len(size) > 1 else size[0])]


def resize(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y of the size that the output has."""
    mode, size = ctx.spec.kind.split("_")[1], ctx.spec.outputs[0].shape[2:]
    return [F.interpolate(inputs[0], size, mode=mode, align_corners=attrs.get("align_corners"))]


_PATCH = "kernel_size", "dilation_rate", "padding", "strides"


def _cross(a: Attrs, x: Tensor, y: Tensor) -> Tensor:
    return torch.linalg.cross(*torch.broadcast_tensors(x, y), dim=a["dim"])


def _sampled(a: Attrs, x: Tensor, grid: Tensor) -> Tensor:
    how = a["interpolation_mode"], a["padding_mode"], a["align_corners"]
    return F.grid_sample(x, grid, *how)


def _pad(a: Attrs, x: Tensor) -> Tensor:
    """`padding` counts from the last dim."""
    value = a["floating_constant_value" if x.is_floating_point() else "integral_constant_value"]
    return F.pad(x, tuple(a["padding"]), value=value)


def pad_with_own(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y; the padding is mirrored, or repeats the edge."""
    mode = "reflect" if ctx.spec.kind.startswith("reflection") else "replicate"
    return [F.pad(inputs[0], tuple(attrs["padding"]), mode=mode)]


KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(filter(is_matmul, RULES), matmul),
    **of_inputs(
        {
            "matrix_vector_product": torch.matmul,
            "vector_matrix_product": torch.matmul,
            "dot": torch.dot,
            "inv": torch.linalg.inv,
        }
    ),
    **of_attrs(
        {
            "linalg_cross": _cross,
            "pad": _pad,
            "grid_sample": _sampled,
            "unfold": lambda a, x: F.unfold(x, *map(a.get, _PATCH)),
            "fold": lambda a, x: F.fold(x, a["output_size"], *map(a.get, _PATCH)),
        }
    ),
    "grouped_matmul": grouped,
    **dict.fromkeys((kind for kind in RULES if kind.startswith("upsample")), resize),
    "attention": attention,
    **dict.fromkeys(_CONVOLUTIONS, conv),
    **dict.fromkeys(_TRANSPOSED, transposed_conv),
    **dict.fromkeys((f"max_pool_{n}d{of}" for n in (1, 2, 3) for of in ("", "_indices")), max_pool),
    **dict.fromkeys((f"max_unpool_{n}d" for n in (1, 2, 3)), max_unpool),
    **dict.fromkeys((f"avg_pool_{n}d" for n in (1, 2, 3)), avg_pool),
    **dict.fromkeys(
        (f"adaptive_{of}_pool{n}d" for n in (1, 2, 3) for of in ("avg", "max")), adaptive_pool
    ),
    **dict.fromkeys(
        (f"{mode}_pad{n}d" for mode in ("reflection", "replication") for n in (1, 2)), pad_with_own
    ),
}
CHAINED: dict[str, Kernel] = dict.fromkeys(filter(is_matmul, RULES), recorded_matmul)
BY_INPUT: dict[str, Kernel] = {
    **dict.fromkeys(filter(is_matmul, RULES), matmul),
    **dict.fromkeys(_CONVOLUTIONS, conv_by_input),
}
