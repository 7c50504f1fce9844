"""Matrix products, attention, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..emit import Emitter, Ref, Unknown
from .table import Args, aten


@aten("linear")
def linear(e: Emitter, a: Args) -> Ref:
    x, weight = e.ref(a["input"]), e.ref(a["weight"])
    flat = x if x.ndim > 1 else e.reshaped(x, (1, x.shape[0]))
    y = e.product(flat, weight, transpose_b=True)
    if a["bias"] is not None:
        y = e.op("broadcast_add", [y, a["bias"]], y.shape)
    return e.reshaped(y, a["out"][0])


@aten("matmul", "mm", "bmm")
def matmul(e: Emitter, a: Args) -> Ref:
    x, y = e.ref(a["self"]), e.ref(a["mat2"] if "mat2" in a else a["other"])
    left = x if x.ndim > 1 else e.reshaped(x, (1, x.shape[0]))
    right = y if y.ndim > 1 else e.reshaped(y, (y.shape[0], 1))
    return e.reshaped(e.product(left, right), a["out"][0])


@aten("mv", "dot")
def vectors(e: Emitter, a: Args) -> Ref:
    return matmul(e, {**a, "other": a["vec"] if "vec" in a else a["tensor"]})


@aten("addmm", "baddbmm")
def addmm(e: Emitter, a: Args) -> Ref:
    """beta self + alpha a b."""
    first, second = ("mat1", "mat2") if a["name"] == "addmm" else ("batch1", "batch2")
    y = e.product(a[first], a[second])
    y = y if a["alpha"] == 1 else e.same("scalar_mul", y, operand=a["alpha"])
    if a["beta"] == 0:
        return y
    x = a["self"] if a["beta"] == 1 else e.same("scalar_mul", a["self"], operand=a["beta"])
    return e.op("broadcast_add", [y, x], y.shape)


@aten("scaled_dot_product_attention")
def attention(e: Emitter, a: Args) -> Ref:
    """softmax(q k^T scale + mask) v; see the rule of `attention`."""
    q, k, v = (e.ref(a[n]) for n in ("query", "key", "value"))
    if a["dropout_p"]:
        raise Unknown("attention with dropout inside; set its dropout_p to 0")
    if not q.ndim == k.ndim == v.ndim == 4:
        raise Unknown("attention of tensors that are not [batch, heads, rows, width]")
    scale = a["scale"] if a["scale"] is not None else 1 / math.sqrt(q.shape[-1])
    mask = a["attn_mask"]
    given = [q, k, v] if mask is None else [q, k, v, mask]
    shape = (*q.shape[:-1], v.shape[-1])
    return e.op("attention", given, shape, causal=bool(a["is_causal"]), scale=float(scale))


@aten("conv1d", "conv2d", "conv3d", "convolution")
def conv(e: Emitter, a: Args) -> Ref:
    x, weight = e.ref(a["input"]), e.ref(a["weight"])
    dims = x.ndim - 2
    if a.get("transposed") or isinstance(a["padding"], str):
        raise Unknown("a transposed convolution, or padding by name")
    y = e.op(
        f"conv{dims}d", [x, weight], a["out"][0], strides=_each(a["stride"], dims),
        padding_before=_each(a["padding"], dims), dilation_rate=_each(a["dilation"], dims),
        groups=a["groups"], kernel_size=tuple(weight.shape[2:]), filters=weight.shape[0],
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


@aten("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices")
def max_pool(e: Emitter, a: Args) -> Any:
    dims = int(a["name"].removesuffix("_with_indices")[-2])
    several = a["name"].endswith("indices")
    shape = (a["out"][0] if several else a["out"])[0]
    attrs = _window(a, dims)
    attrs["dilation"] = _each(a["dilation"], dims)
    y = e.op(f"max_pool_{dims}d", [a["self"]], shape, **attrs)
    return (y, None) if several else y


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(e: Emitter, a: Args) -> Ref:
    dims = int(a["name"][-2])
    more = {
        "count_include_pad": a["count_include_pad"],
        "divisor_override": a.get("divisor_override") or 0,
    }
    return e.op(f"avg_pool_{dims}d", [a["self"]], a["out"][0], **_window(a, dims), **more)


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(e: Emitter, a: Args) -> Ref:
    dims = int(a["name"][-2])
    size = tuple(map(int, a["out"][0][-dims:]))
    return e.op(f"adaptive_avg_pool{dims}d", [a["self"]], a["out"][0], output_size=size)
