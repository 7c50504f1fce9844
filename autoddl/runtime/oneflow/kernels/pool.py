"""Pooling, resizing, padding and patches."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...kernel import Context
from .registry import kernel


@kernel(*(f"max_pool_{n}d{of}" for n in (1, 2, 3) for of in ("", "_indices")))
def max_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y, or the indices of the maxima."""
    kind, indices, _ = ctx.spec.kind.partition("_indices")
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "data_format")
    given = {name: attrs[name] for name in names}
    found = getattr(_C, kind.replace("pool_", "pool"))(inputs[0], **given, return_indices=True)
    return [found[1 if indices else 0]]


@kernel(*(f"max_unpool_{n}d" for n in (1, 2, 3)))
def max_unpool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, indices) -> y of the size of the images that were pooled."""
    unpool = getattr(_C, ctx.spec.kind.replace("pool_", "pool"))
    window = [attrs[name] for name in ("kernel_size", "stride", "padding")]
    size = (*inputs[0].shape[:2], *ctx.spec.outputs[0].shape[2:])
    return [unpool(*inputs, *window, size)]


@kernel("avg_pool_1d", "avg_pool_2d", "avg_pool_3d")
def avg_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y."""
    pool = getattr(_C, ctx.spec.kind.replace("pool_", "pool"))
    names = (
        "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override",
        "data_format",
    )  # fmt: skip
    return [pool(inputs[0], **{name: attrs[name] for name in names})]


@kernel("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y of `output_size`."""
    return [getattr(_C, ctx.spec.kind)(inputs[0], attrs["output_size"])]


@kernel("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y of `output_size`, without the indices of the maxima."""
    return [getattr(_C, ctx.spec.kind)(inputs[0], attrs["output_size"])[0]]


@kernel(
    *(f"upsample_nearest_{n}d" for n in (1, 2, 3)),
    "upsample_linear_1d",
    "upsample_bilinear_2d",
    "upsample_bicubic_2d",
    "upsample_trilinear_3d",
)
def upsample(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y, by scale or to `output_size`."""
    given = {**attrs, "output_size": attrs["output_size"] or None}
    return [getattr(_C, ctx.spec.kind)(inputs[0], **given)]


@kernel("pad")
def pad(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y; `padding` counts from the last dim."""
    (x,) = inputs
    value = "floating" if x.is_floating_point() else "integral"
    return [_C.pad(x, attrs["padding"], value=attrs[f"{value}_constant_value"])]


@kernel(*(f"{mode}_pad{n}d" for mode in ("reflection", "replication") for n in (1, 2)))
def pad_with_own(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y; the padding is mirrored, or repeats the edge."""
    mode = "reflect" if ctx.spec.kind.startswith("reflection") else "replicate"
    return [_C.pad(inputs[0], attrs["padding"], mode=mode)]


@kernel("unfold", "fold")
def patches(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """Images to patches, or back."""
    size = [attrs["output_size"]] if ctx.spec.kind == "fold" else []
    window = [attrs[n] for n in ("kernel_size", "dilation_rate", "padding", "strides")]
    return [getattr(_C, ctx.spec.kind)(inputs[0], *size, *window, attrs["data_format"])]


@kernel("grid_sample", "affine_grid")
def sample(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, grid) -> out, or theta -> grid."""
    return [getattr(_C, ctx.spec.kind)(*inputs, **attrs)]
