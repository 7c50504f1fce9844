"""Convolutions, pooling and what else looks at places of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown
from .table import Args, aten


@aten("conv1d", "conv2d", "conv3d", "convolution")
def conv(e: GraphBuilder, a: Args) -> Ref:
    if a.get("transposed"):
        return transposed_conv(e, a)
    x, weight = e.ref(a["input"]), e.ref(a["weight"])
    dims = x.ndim - 2
    padding, taps = (
        a["padding"],
        [(n - 1) * d for n, d in zip(weight.shape[2:], _each(a["dilation"], dims), strict=True)],
    )
    if isinstance(padding, str):
        padding = [n // 2 if padding == "same" else 0 for n in taps]
        if a["padding"] == "same" and any(n % 2 for n in taps):
            raise Unknown("a convolution that pads its two sides differently")
    y = e.op(
        f"conv{dims}d", [x, weight], a["out"][0], strides=_each(a["stride"], dims),
        padding_before=_each(padding, dims), dilation_rate=_each(a["dilation"], dims),
        groups=a["groups"], kernel_size=tuple(weight.shape[2:]), filters=weight.shape[0],
        data_format="channels_first",
    )  # fmt: skip
    return y if a["bias"] is None else e.op("bias_add", [y, a["bias"]], y.shape, axis=1)


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_conv(e: GraphBuilder, a: Args) -> Ref:
    x, weight = e.ref(a["input"]), e.ref(a["weight"])
    dims = x.ndim - 2
    y = e.op(
        f"deconv{dims}d", [x, weight], a["out"][0], strides=_each(a["stride"], dims),
        padding_before=_each(a["padding"], dims), dilation_rate=_each(a["dilation"], dims),
        output_padding=_each(a["output_padding"], dims), groups=a["groups"],
        kernel_size=tuple(weight.shape[2:]), filters=weight.shape[1] * a["groups"],
        data_format="channels_first",
    )  # fmt: skip
    return y if a["bias"] is None else e.op("bias_add", [y, a["bias"]], y.shape, axis=1)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * dims if len(values) == 1 else values


def _window(a: Args, dims: int) -> dict[str, Any]:
    size = _each(a["kernel_size"], dims)
    stride: Sequence[int] = a["stride"] if a["stride"] else size
    return {
        "kernel_size": size, "stride": _each(stride, dims), "padding": _each(a["padding"], dims),
        "ceil_mode": a["ceil_mode"], "data_format": "channels_first",
    }  # fmt: skip


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(e: GraphBuilder, a: Args) -> Ref:
    dims = int(a["name"][-2])
    attrs = _window(a, dims)
    attrs["dilation"] = _each(a["dilation"], dims)
    return e.op(f"max_pool_{dims}d", [a["self"]], a["out"][0], **attrs)


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(e: GraphBuilder, a: Args) -> Ref:
    dims = int(a["name"][-2])
    more = {
        "count_include_pad": a["count_include_pad"],
        "divisor_override": a.get("divisor_override") or 0,
    }
    return e.op(f"avg_pool_{dims}d", [a["self"]], a["out"][0], **_window(a, dims), **more)


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(e: GraphBuilder, a: Args) -> Ref:
    dims = int(a["name"][-2])
    size = tuple(map(int, a["out"][0][-dims:]))
    return e.op(f"adaptive_avg_pool{dims}d", [a["self"]], a["out"][0], output_size=size)


@aten("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(e: GraphBuilder, a: Args) -> Any:
    """The places of the largest are not given."""
    shape = a["out"][0][0]
    size = tuple(map(int, shape[2:]))
    return e.op(f"adaptive_max_pool{len(size)}d", [a["self"]], shape, output_size=size), None


_RESIZED = {
    "upsample_nearest1d": "nearest_1d", "upsample_nearest2d": "nearest_2d",
    "upsample_nearest3d": "nearest_3d", "upsample_linear1d": "linear_1d",
    "upsample_bilinear2d": "bilinear_2d", "upsample_bicubic2d": "bicubic_2d",
    "upsample_trilinear3d": "trilinear_3d",
}  # fmt: skip


@aten(*_RESIZED)
def resized(e: GraphBuilder, a: Args) -> Ref:
    x, (shape, _) = e.ref(a["input"] if "input" in a else a["self"]), a["out"]
    size, before = tuple(map(int, shape[2:])), tuple(map(int, x.shape[2:]))
    scales = a.get("scale_factors") or [
        v for k, v in a.items() if k.startswith("scales") and v is not None
    ]
    if any(n * f != m for n, m, f in zip(before, size, scales, strict=False)):
        raise Unknown("a resizing by a factor that no whole sizes have")
    more = {"align_corners": a["align_corners"]} if "align_corners" in a else {}
    return e.op(f"upsample_{_RESIZED[a['name']]}", [x], shape, output_size=size, **more)


@aten("im2col", "col2im")
def patches(e: GraphBuilder, a: Args) -> Ref:
    window = {
        ours: tuple(map(int, a[theirs]))
        for ours, theirs in (("kernel_size", "kernel_size"), ("dilation_rate", "dilation"),
                             ("padding", "padding"), ("strides", "stride"))
    }  # fmt: skip
    kind, more = "unfold", {}
    if a["name"] == "col2im":
        kind, more = "fold", {"output_size": tuple(map(int, a["output_size"]))}
    return e.op(kind, [a["self"]], a["out"][0], **window, **more, data_format="channels_first")


_MODES = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


@aten("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def sampled(e: GraphBuilder, a: Args) -> Ref:
    numbers = a["interpolation_mode"], a["padding_mode"]
    mode, padding = (names[n] for names, n in zip(_MODES, numbers, strict=True))
    return e.op(
        "grid_sample", [a["input"], a["grid"]], a["out"][0], interpolation_mode=mode,
        padding_mode=padding, align_corners=a["align_corners"],
    )  # fmt: skip
