"""Operators in NumPy, from their definitions; HIPS autograd differentiates them.

`FORWARD[kind](inputs, attrs, shard)` returns the outputs. `shard` says where a device's tensors
begin: a lookup in a part of a table needs it. `kernel(kind)` is the form that the oracle takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import autograd.numpy as np
from autograd import grad
from autograd.scipy.special import erf, erfc, gammaln

from autoddl.sbp.oracle import Kernel

FORWARD: dict[str, Callable] = {}


def kernel(kind: str) -> Kernel:
    """The forward function of `kind` with its pullback."""
    forward = FORWARD[kind]

    def run(inputs, attrs, shard):
        floats = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"]

        def weighted_sum(values, grads):
            merged = list(inputs)
            for i, value in zip(floats, values, strict=True):
                merged[i] = value
            outs = forward(merged, attrs, shard)
            return sum(np.sum(out * g) for out, g in zip(outs, grads, strict=True) if g is not None)

        def pullback(grads):
            found = grad(weighted_sum)(tuple(inputs[i] for i in floats), grads)
            by_input = dict(zip(floats, found, strict=True))
            return [by_input.get(i) for i in range(len(inputs))]

        return forward(inputs, attrs, shard), pullback

    return run


def op(*kinds):
    def register(function):
        for kind in kinds:
            assert kind not in FORWARD, kind
            FORWARD[kind] = function
        return function

    return register


def elementwise(function):
    """An operator of one output from a function of the inputs and attributes."""
    return lambda inputs, attrs, shard: (function(*inputs, attrs),)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def _elu(x, alpha):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


SQRT2, SELU_SCALE, SELU_ALPHA = 2**0.5, 1.0507009873554805, 1.6732632423543772

UNARY = {
    "identity": lambda x, a: 1 * x,
    "fork": lambda x, a: 1 * x,
    "relu": lambda x, a: np.maximum(x, 0),
    "gelu": lambda x, a: 0.5 * x * (1 + erf(x / SQRT2)),
    "fast_gelu": lambda x, a: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x, a: x * sigmoid(1.702 * x),
    "sigmoid": lambda x, a: sigmoid(x),
    "silu": lambda x, a: x * sigmoid(x),
    "mish": lambda x, a: x * np.tanh(softplus(x)),
    "selu": lambda x, a: SELU_SCALE * _elu(x, SELU_ALPHA),
    "elu": lambda x, a: _elu(x, a["alpha"]),
    "celu": lambda x, a: np.where(x > 0, x, a["alpha"] * np.expm1(np.minimum(x / a["alpha"], 0))),
    "leaky_relu": lambda x, a: np.where(x > 0, x, a["alpha"] * x),
    "softplus": lambda x, a: softplus(a["beta"] * x) / a["beta"],
    "softsign": lambda x, a: x / (1 + np.abs(x)),
    "softshrink": lambda x, a: np.where(np.abs(x) > a["alpha"], x - a["alpha"] * np.sign(x), 0 * x),
    "log_sigmoid": lambda x, a: -softplus(-x),
    "hardshrink": lambda x, a: np.where(np.abs(x) > a["lambd"], x, 0 * x),
    "log10": lambda x, a: np.log10(x),
    "lgamma": lambda x, a: gammaln(x),
    "hardswish": lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid": lambda x, a: np.clip(x / 6 + 0.5, 0, 1),
    "hardtanh": lambda x, a: np.clip(x, a["min_val"], a["max_val"]),
    "threshold": lambda x, a: np.where(x > a["threshold_val"], x, a["value"] + 0 * x),
    "rsqrt": lambda x, a: 1 / np.sqrt(x),
    "reciprocal": lambda x, a: 1 / x,
    "reciprocal_no_nan": lambda x, a: 1 / x,
    "erf": lambda x, a: erf(x),
    "erfc": lambda x, a: erfc(x),
    "scalar_add": lambda x, a: x + a["operand"],
    "scalar_mul": lambda x, a: x * a["operand"],
    "scalar_div": lambda x, a: x / a["operand"],
    "scalar_pow": lambda x, a: x ** a["operand"],
    "scalar_reverse_pow": lambda x, a: a["operand"] ** x,
    "scalar_fmod": lambda x, a: x - np.trunc(x / a["operand"]) * a["operand"],
    "scalar_floordiv": lambda x, a: np.floor(x / a["operand"]) + 0 * x,
    "clip_by_scalar": lambda x, a: np.clip(x, a["floating_min"], a["floating_max"]),
    "clip_by_scalar_min": lambda x, a: np.maximum(x, a["floating_min"]),
    "clip_by_scalar_max": lambda x, a: np.minimum(x, a["floating_max"]),
    "logical_not": lambda x, a: np.logical_not(x),
    "scalar_logical_and": lambda x, a: np.logical_and(x, a["operand"]),
    "scalar_logical_or": lambda x, a: np.logical_or(x, a["operand"]),
    "scalar_logical_xor": lambda x, a: np.logical_xor(x, a["operand"]),
    "where_scalar_xy": lambda c, a: np.where(c, a["x_float_operand"], a["y_float_operand"]),
    "scalar_logical_equal": lambda x, a: x == a["operand"],
    "scalar_logical_not_equal": lambda x, a: x != a["operand"],
    "scalar_logical_less": lambda x, a: x < a["operand"],
    "scalar_logical_less_equal": lambda x, a: x <= a["operand"],
    "scalar_logical_greater": lambda x, a: x > a["operand"],
    "scalar_logical_greater_equal": lambda x, a: x >= a["operand"],
}  # fmt: skip
SAME = (
    "tanh", "exp", "expm1", "log", "log1p", "log2", "sqrt", "square", "abs", "negative", "sin",
    "cos", "tan", "sinh", "cosh", "isnan", "isinf", "isfinite",
)  # fmt: skip
ARCS = {n: n.replace("a", "arc", 1) for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
PIECEWISE_CONSTANT = ("floor", "ceil", "round", "rint", "trunc", "sign")


def plain(name):
    return lambda x, a: getattr(np, name)(x)


def without_slope(name):
    """The term with 0 gives autograd the zero gradient that it does not know of."""
    return lambda x, a: getattr(np, name)(x) + 0 * x


UNARY |= {name: plain(name) for name in SAME}
UNARY |= {name: plain(source) for name, source in ARCS.items()}
UNARY |= {name: without_slope(name) for name in PIECEWISE_CONSTANT}

BINARY = {
    "broadcast_sub": lambda x, y, a: x - y,
    "broadcast_mul": lambda x, y, a: x * y,
    "broadcast_div": lambda x, y, a: x / y,
    "broadcast_maximum": lambda x, y, a: np.maximum(x, y),
    "broadcast_minimum": lambda x, y, a: np.minimum(x, y),
    "elementwise_maximum": lambda x, y, a: np.maximum(x, y),
    "elementwise_minimum": lambda x, y, a: np.minimum(x, y),
    "broadcast_pow": lambda x, y, a: x**y,
    "pow": lambda x, y, a: x**y,
    "broadcast_fmod": lambda x, y, a: x - np.trunc(x / y) * y,
    "floordiv": lambda x, y, a: np.floor(x / y) + 0 * x,
    "atan2": lambda x, y, a: np.arctan2(x, y),
    "xdivy": lambda x, y, a: x / y,
    "broadcast_isclose_neq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"]),
    "broadcast_isclose_eq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"], True),
    "broadcast_equal": lambda x, y, a: x == y,
    "broadcast_not_equal": lambda x, y, a: x != y,
    "broadcast_less": lambda x, y, a: x < y,
    "broadcast_less_equal": lambda x, y, a: x <= y,
    "broadcast_greater": lambda x, y, a: x > y,
    "broadcast_greater_equal": lambda x, y, a: x >= y,
    "broadcast_logical_and": lambda x, y, a: np.logical_and(x, y),
    "broadcast_logical_or": lambda x, y, a: np.logical_or(x, y),
    "broadcast_logical_xor": lambda x, y, a: np.logical_xor(x, y),
    "masked_fill": lambda x, mask, a: np.where(mask, a["operand"] + 0 * x, x),
    "where_scalar_y": lambda c, x, a: np.where(c, x, a["operand"] + 0 * x),
    "where_scalar_x": lambda c, x, a: np.where(c, a["operand"] + 0 * x, x),
}

for _kind, _function in {**UNARY, **BINARY}.items():
    op(_kind)(elementwise(_function))


@op("add_n", "broadcast_add")
def _add(inputs, attrs, shard):
    return (sum(inputs[1:], inputs[0]),)


@op("where")
def _where(inputs, attrs, shard):
    condition, x, y = inputs
    return (condition * x + (1 - condition) * y,)


@op("cast")
def _cast(inputs, attrs, shard):
    return (inputs[0].astype(attrs["dtype"]) if "int" in attrs["dtype"] else 1.0 * inputs[0],)


@op("bias_add")
def _bias_add(inputs, attrs, shard):
    a, b = inputs
    return (a + b.reshape([-1 if d == attrs["axis"] else 1 for d in range(a.ndim)]),)


@op("prelu")
def _prelu(inputs, attrs, shard):
    x, alpha = inputs
    alpha = alpha.reshape([-1 if d == 1 else 1 for d in range(x.ndim)])
    return (np.where(x > 0, x, alpha * x),)


@op("dropout")
def _dropout(inputs, attrs, shard):
    """A mask of the global position, so that every shard sees its part of one mask."""
    (x,) = inputs
    grids = np.meshgrid(
        *(start + np.arange(n) for start, n in zip(shard.in_starts[0], x.shape, strict=True)),
        indexing="ij",
    )
    position = np.ravel_multi_index(grids, shard.op.inputs[0].shape)
    keep = (position * 7919) % 101 / 101 >= attrs["rate"]
    return (x * keep / (1 - attrs["rate"]),)


# matrix products


@op("matmul", "broadcast_matmul", "batch_matmul")
def _matmul(inputs, attrs, shard):
    a, b = inputs
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    return (attrs["alpha"] * np.matmul(a, b),)


@op("matrix_vector_product", "vector_matrix_product", "dot")
def _dot(inputs, attrs, shard):
    return (np.dot(*inputs),)


@op("linalg_cross")
def _cross(inputs, attrs, shard):
    whole = 0 * sum(inputs)  # stretches each
    x, y = (np.moveaxis(t + whole, attrs["dim"], 0) for t in inputs)
    vectors = [x[i] * y[j] - x[j] * y[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return (np.stack(vectors, axis=attrs["dim"]),)


@op("inv")
def _inverse(inputs, attrs, shard):
    return (np.linalg.inv(inputs[0]),)


# convolutions and pooling


def pad_window(x, padding, value):
    widths = [(0, 0)] * (x.ndim - len(padding)) + [(p, p) for p in padding]
    return np.pad(x, widths, mode="constant", constant_values=value)


def windows(x, kernel, stride, dilation):
    """[taps, n, c, ...]: for each tap of the kernel the elements of x that it meets."""
    spatial = x.shape[2:]
    size = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(spatial, kernel, stride, dilation, strict=True)
    ]
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        cut = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, size, stride, strict=True)
        ]
        taps.append(x[(slice(None), slice(None), *cut)])
    return np.stack(taps)


@op("conv1d", "conv2d", "conv3d")
def _conv(inputs, attrs, shard):
    x, w = inputs
    last = attrs["data_format"] == "channels_last"
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    assert w.shape[0] == attrs["filters"]
    groups, kernel_size = attrs["groups"], attrs["kernel_size"]
    x = pad_window(x, attrs["padding_before"], 0.0)
    met = windows(x, kernel_size, attrs["strides"], attrs["dilation_rate"])
    size = met.shape[3:]
    met = met.reshape((len(met), x.shape[0], groups, x.shape[1] // groups, -1))
    w = w.reshape((groups, w.shape[0] // groups, w.shape[1], -1))
    y = np.einsum("tngcs,gfct->ngfs", met, w).reshape((x.shape[0], -1, *size))
    return (np.moveaxis(y, 1, -1) if last else y,)


@op("deconv1d", "deconv2d", "deconv3d")
def _transposed_conv(inputs, attrs, shard):
    x, w = inputs
    last = attrs["data_format"] == "channels_last"
    if last:
        x, w = np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1)
    groups = attrs["groups"]
    assert w.shape[1] * groups == attrs["filters"]
    x = x.reshape((x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    w = w.reshape((groups, w.shape[0] // groups, *w.shape[1:]))
    window = range(len(attrs["kernel_size"]))
    meets = [_lands(x.shape[3 + d], *(attrs[name][d] for name in _TRANSPOSED)) for d in window]
    into, taps, onto = "abd"[: len(window)], "ijk"[: len(window)], "xyz"[: len(window)]
    each = ",".join(map("".join, zip(into, taps, onto, strict=True)))
    y = np.einsum(f"ngc{into},gcf{taps},{each}->ngf{onto}", x, w, *meets)
    y = y.reshape((y.shape[0], -1, *y.shape[3:]))
    return (np.moveaxis(y, 1, -1) if last else y,)


_TRANSPOSED = ("kernel_size", "strides", "dilation_rate", "padding_before", "output_padding")


def _lands(size, kernel, stride, dilation, padding, added):
    """[element, tap, element of the output] 1 where the tap puts the element."""
    at = np.arange(size)[:, None] * stride + np.arange(kernel) * dilation - padding
    length = (size - 1) * stride + dilation * (kernel - 1) + 1 + added - 2 * padding
    return (at[:, :, None] == np.arange(length)).astype(float)


def _pool(reduce, fill):
    def run(inputs, attrs, shard):
        x = pad_window(inputs[0], attrs["padding"], fill)
        dilation = attrs.get("dilation", (1,) * len(attrs["stride"]))
        return (reduce(windows(x, attrs["kernel_size"], attrs["stride"], dilation)),)

    return run


op(*(f"max_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.max(w, axis=0), -1e30))
op(*(f"avg_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.mean(w, axis=0), 0.0))


def _adaptive(reduce):
    def run(inputs, attrs, shard):
        (x,), size = inputs, attrs["output_size"]
        spans = [
            [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            for n, m in zip(x.shape[-len(size) :], size, strict=True)
        ]
        over = tuple(range(-len(size), 0))
        cells = [
            reduce(x[(..., *(slice(*span) for span in cell))], over)
            for cell in itertools.product(*spans)
        ]
        return (np.stack(cells, axis=-1).reshape((*x.shape[: -len(size)], *size)),)

    return run


op(*(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.mean(x, axis=over)))
op(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.max(x, axis=over)))


def _linear(n, scale):
    """[n * scale, n]: the weights with which the sources make up each target."""
    where = np.clip((np.arange(int(n * scale)) + 0.5) / scale - 0.5, 0, n - 1)
    return np.maximum(0, 1 - np.abs(where[:, None] - np.arange(n)[None, :]))


def _nearest(n, scale):
    where = np.floor(np.arange(int(n * scale)) / scale)
    return (where[:, None] == np.arange(n)[None, :]) * 1.0


def _cubic(n, scale):
    """Keys' kernel with a = -0.75; sources beyond the edge are those at the edge."""
    where = (np.arange(int(n * scale)) + 0.5) / scale - 0.5
    weights = np.zeros((len(where), n))
    for shift in range(-1, 3):
        source = np.floor(where) + shift
        d = np.abs(where - source)
        near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        at = np.clip(source, 0, n - 1)[:, None] == np.arange(n)
        weights += at * np.where(d <= 1, near, far)[:, None]
    return weights


def _upsample(weights):
    def run(inputs, attrs, shard):
        (x,) = inputs
        scales = [attrs[name] for name in _SCALES if name in attrs]
        for dim, scale in enumerate(scales, start=2):
            resized = np.tensordot(x, weights(x.shape[dim], scale), axes=((dim,), (1,)))
            x = np.moveaxis(resized, -1, dim)
        return (x,)

    return run


_SCALES = ("scale_factor", "depth_scale", "height_scale", "width_scale")
op(*(f"upsample_nearest_{n}d" for n in (1, 2, 3)))(_upsample(_nearest))
op("upsample_linear_1d", "upsample_bilinear_2d", "upsample_trilinear_3d")(_upsample(_linear))
op("upsample_bicubic_2d")(_upsample(_cubic))


def _taken(mode):
    """Padding with elements of the tensor itself: each output element's place in it."""

    def run(inputs, attrs, shard):
        (x,) = inputs
        before_after = np.reshape(attrs["padding"], (-1, 2))[::-1]  # counted from the last dim
        for dim, widths in enumerate(before_after, start=x.ndim - len(before_after)):
            places = np.pad(np.arange(x.shape[dim]), tuple(widths), mode=mode)
            x = x[(slice(None),) * dim + (places,)]
        return (x,)

    return run


op("reflection_pad1d", "reflection_pad2d")(_taken("reflect"))
op("replication_pad1d", "replication_pad2d")(_taken("edge"))


def _patches_of(x, attrs):
    met = windows(
        pad_window(x, attrs["padding"], 0.0),
        attrs["kernel_size"], attrs["strides"], attrs["dilation_rate"],
    )  # fmt: skip
    return np.moveaxis(met, 0, 2).reshape((x.shape[0], -1, math.prod(met.shape[3:])))


@op("unfold")
def _unfold(inputs, attrs, shard):
    return (_patches_of(inputs[0], attrs),)


@op("fold")
def _fold(inputs, attrs, shard):
    """The transpose of `unfold`: patches add up where they overlap."""
    (x,), size = inputs, attrs["output_size"]
    pixels = np.eye(math.prod(size)).reshape((-1, 1, *size))
    whence = _patches_of(pixels, attrs)  # [pixel, tap, place]
    x = x.reshape((x.shape[0], -1, *whence.shape[1:]))
    return (np.einsum("nctl,ptl->ncp", x, whence).reshape((*x.shape[:2], *size)),)


@op("grid_sample")
def _grid_sample(inputs, attrs, shard):
    """Bilinear, zero beyond the edge; -1 and 1 are the outer edges of the first and last pixels."""
    x, grid = inputs
    rows, columns = (
        np.maximum(0, 1 - np.abs(((at + 1) * n - 1)[..., None] / 2 - np.arange(n)))
        for at, n in ((grid[..., 1], x.shape[2]), (grid[..., 0], x.shape[3]))
    )
    return (np.einsum("nchw,nijh,nijw->ncij", x, rows, columns),)


@op("affine_grid")
def _affine_grid(inputs, attrs, shard):
    (theta,), (rows, _, height, width) = inputs, attrs["size"]
    assert rows == len(theta)
    y, x = ((2 * np.arange(n) + 1) / n - 1 for n in (height, width))
    base = np.stack([*np.meshgrid(x, y), np.ones((height, width))], axis=-1)
    return (np.einsum("hwk,nck->nhwc", base, theta),)


@op("pad")
def _pad(inputs, attrs, shard):
    widths = list(zip(attrs["padding_before"], attrs["padding_after"], strict=True))
    value = attrs["floating_constant_value"]
    return (np.pad(inputs[0], widths, mode="constant", constant_values=value),)


# reductions and what is built on them


def _reduction(function):
    def run(inputs, attrs, shard):
        return (function(inputs[0], axis=tuple(attrs["axis"]), keepdims=attrs["keepdims"]),)

    return run


op("reduce_sum")(_reduction(np.sum))
op("reduce_max")(_reduction(np.max))
op("reduce_min")(_reduction(np.min))
op("reduce_any")(_reduction(np.any))
op("reduce_all")(_reduction(np.all))


@op("reduce_prod")
def _prod(inputs, attrs, shard):
    (axis,) = attrs["axis"]
    return (np.prod(inputs[0], axis=axis),)


@op("reduce_mean")
def _mean(inputs, attrs, shard):
    axis = tuple(attrs["axis"])
    count = attrs.get("count", math.prod(inputs[0].shape[a] for a in axis))
    return (np.sum(inputs[0], axis=axis, keepdims=attrs["keepdims"]) / count,)


@op("var")
def _var(inputs, attrs, shard):
    (x,), axis = inputs, tuple(attrs["dim"])
    return (np.var(x, axis=axis, keepdims=attrs["keepdim"], ddof=int(attrs["unbiased"])),)


@op("reduce_nansum")
def _nansum(inputs, attrs, shard):
    (x,), axis = inputs, tuple(attrs["axis"])
    return (np.sum(np.where(np.isnan(x), 0.0, x), axis=axis, keepdims=attrs["keepdims"]),)


@op("median_with_indices")
def _median(inputs, attrs, shard):
    (x,) = inputs
    order = np.argsort(getattr(x, "_value", x), axis=-1)
    chosen = order[..., (x.shape[-1] - 1) // 2]
    return (np.sum(x * (chosen[..., None] == np.arange(x.shape[-1])), axis=-1),)


@op("argmax")
def _argmax(inputs, attrs, shard):
    return (np.argmax(inputs[0], axis=-1),)


@op("arg_sort")
def _arg_sort(inputs, attrs, shard):
    return (np.argsort(inputs[0], axis=-1),)


@op("top_k")
def _top_k(inputs, attrs, shard):
    return (np.argsort(-inputs[0], axis=-1)[..., : attrs["k"]],)


@op("cumsum")
def _cumsum(inputs, attrs, shard):
    return (np.cumsum(inputs[0], axis=attrs["dim"]),)


def logsumexp(x):
    m = np.max(x, axis=-1, keepdims=True)
    return m + np.log(np.sum(np.exp(x - m), axis=-1, keepdims=True))


@op("softmax")
def _softmax(inputs, attrs, shard):
    return (np.exp(inputs[0] - logsumexp(inputs[0])),)


@op("log_softmax")
def _log_softmax(inputs, attrs, shard):
    return (inputs[0] - logsumexp(inputs[0]),)


def standardise(x, axis, epsilon):
    mean = np.mean(x, axis=axis, keepdims=True)
    return (x - mean) / np.sqrt(np.mean((x - mean) ** 2, axis=axis, keepdims=True) + epsilon)


@op("normalization")
def _normalization(inputs, attrs, shard):
    x, *moving, gamma, beta = inputs
    shape = [-1 if d == attrs["axis"] else 1 for d in range(x.ndim)]
    if attrs["training"]:
        others = tuple(d for d in range(x.ndim) if d != attrs["axis"])
        normal = standardise(x, others, attrs["epsilon"])
    else:
        mean, variance = (m.reshape(shape) for m in moving)
        normal = (x - mean) / np.sqrt(variance + attrs["epsilon"])
    return (gamma.reshape(shape) * normal + beta.reshape(shape),)


@op("layer_norm")
def _layer_norm(inputs, attrs, shard):
    x, *params = inputs
    normal = standardise(x, tuple(range(attrs["begin_norm_axis"], x.ndim)), attrs["epsilon"])
    return (params[0] * normal + params[1] if params else normal,)


@op("rms_norm")
def _rms_norm(inputs, attrs, shard):
    x, weight = inputs
    return (weight * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + attrs["epsilon"]),)


@op("l2_normalize")
def _l2_normalize(inputs, attrs, shard):
    (x,) = inputs
    return (x / np.sqrt(np.sum(x**2, axis=attrs["axis"], keepdims=True) + attrs["epsilon"]),)


# losses


def masked_lookup(local_index, n):
    """Indices that are safe in n rows, and 1 where the index was inside, else 0."""
    inside = (local_index >= 0) & (local_index < n)
    return np.where(inside, local_index, 0), inside * 1.0


@op("nll")
def _nll(inputs, attrs, shard):
    x, target, *weight = inputs
    counted = target != attrs["ignore_index"]
    row_weight = counted * (weight[0][target] if weight else 1.0)
    safe, inside = masked_lookup(target - shard.in_starts[0][-1], x.shape[-1])
    return -row_weight * inside * x[np.arange(len(target)), safe], row_weight


@op("sparse_softmax_cross_entropy")
def _sparse_cross_entropy(inputs, attrs, shard):
    x, label = inputs
    assert attrs["depth"] == x.shape[-1]
    picked = np.sum(x * (label[..., None] == np.arange(x.shape[-1])), axis=-1)
    return (logsumexp(x)[..., 0] - picked,)


@op("softmax_cross_entropy")
def _cross_entropy(inputs, attrs, shard):
    x, label = inputs
    return (np.sum(label * (logsumexp(x) - x), axis=-1),)


@op("smooth_l1_loss")
def _smooth_l1(inputs, attrs, shard):
    distance, beta = np.abs(inputs[0] - inputs[1]), attrs["beta"]
    return (np.where(distance < beta, 0.5 * distance**2 / beta, distance - 0.5 * beta),)


@op("kl_div_loss")
def _kl_div(inputs, attrs, shard):
    x, target = inputs
    return (target * (np.log(target) - x),)


@op("binary_cross_entropy")
def _bce(inputs, attrs, shard):
    x, target, *weight = inputs
    loss = -target * np.log(x) - (1 - target) * np.log(1 - x)
    return (loss * weight[0] if weight else loss,)


@op("binary_cross_entropy_with_logits")
def _bce_with_logits(inputs, attrs, shard):
    x, target, *weights = inputs
    positive = weights.pop() if attrs["has_pos_weight"] else 1.0
    loss = target * positive * softplus(-x) + (1 - target) * softplus(x)
    return (loss * weights[0] if weights else loss,)


@op("binary_cross_entropy_with_logits_reduce_mean")
def _bce_mean(inputs, attrs, shard):
    x, target = inputs
    loss = target * softplus(-x) + (1 - target) * softplus(x)
    return (np.sum(loss) / attrs.get("count", x.size),)


@op("ctc_loss")
def _ctc(inputs, attrs, shard):
    """Forward recursion over the targets with blanks between them, row by row."""
    log_probs, targets, steps, lengths = inputs
    losses = []
    for row in range(len(targets)):
        path = [attrs["blank"]]
        for symbol in targets[row, : lengths[row]]:
            path += [symbol, attrs["blank"]]
        given = log_probs[: steps[row], row][:, np.array(path)]
        alpha = [given[0, s] if s < 2 else -1e30 for s in range(len(path))]
        for now in given[1:]:
            before, alpha = alpha, []
            for s in range(len(path)):
                total = before[s]
                if s > 0:
                    total = np.logaddexp(total, before[s - 1])
                if s > 1 and path[s] not in (attrs["blank"], path[s - 2]):
                    total = np.logaddexp(total, before[s - 2])
                alpha.append(total + now[s])
        losses.append(-np.logaddexp(alpha[-1], alpha[-2]))
    return (np.array(losses),)


# lookups


@op("gather")
def _gather(inputs, attrs, shard):
    table, indices = inputs
    axis = attrs["axis"]
    safe, inside = masked_lookup(indices - shard.in_starts[0][axis], table.shape[axis])
    rows = np.moveaxis(table, axis, 0)[safe]
    rows = rows * inside.reshape((*indices.shape, *(1,) * (table.ndim - 1)))
    found = tuple(range(indices.ndim))
    return (np.moveaxis(rows, found, tuple(axis + d for d in found)),)


@op("embedding")
def _embedding(inputs, attrs, shard):
    """No gradient for the padding row; gradients divided by the index's frequency if asked."""
    weight, indices = inputs
    counts = np.bincount(indices.ravel(), minlength=len(weight))
    scale = 1.0 / np.maximum(counts, 1) if attrs["scale_grad_by_freq"] else np.ones(len(weight))
    scale = np.where(np.arange(len(weight)) == attrs["padding_idx"], 0, scale)[:, None]
    constant = getattr(weight, "_value", weight) * (1 - scale)
    return ((weight * scale + constant)[indices],)


@op("gather_nd")
def _gather_nd(inputs, attrs, shard):
    params, indices = inputs
    return (params[tuple(np.moveaxis(indices, -1, 0))],)


@op("dim_gather")
def _dim_gather(inputs, attrs, shard):
    x, index = inputs
    grids = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij"))
    grids[attrs["dim"]] = index
    return (x[tuple(grids)],)


@op("batch_gather")
def _batch_gather(inputs, attrs, shard):
    x, indices = inputs
    rows = np.indices(indices.shape)[:-1]
    return (x[(*rows, indices)],)


@op("searchsorted")
def _searchsorted(inputs, attrs, shard):
    borders, values = inputs
    side = "right" if attrs["right"] else "left"
    rows = np.broadcast_to(borders, (*values.shape[:-1], borders.shape[-1]))
    found = np.empty(values.shape, int)
    for at in np.ndindex(values.shape[:-1]):
        found[at] = np.searchsorted(rows[at], values[at], side)
    return (found,)


@op("in_top_k")
def _in_top_k(inputs, attrs, shard):
    targets, predictions = inputs
    larger = predictions > predictions[np.arange(len(targets)), targets][:, None]
    return (larger.sum(axis=-1) < attrs["k"],)


@op("dim_scatter_update", "dim_scatter_update_scalar")
def _scatter(inputs, attrs, shard):
    x, index, *src = inputs
    new = src[0] if src else np.full(index.shape, float(attrs["src_scalar"]))
    cells = list(np.indices(index.shape))
    cells[attrs["dim"]] = index
    numbers = np.arange(x.size).reshape(x.shape)
    covered = tuple(map(slice, index.shape))
    numbers[tuple(cells)] = x.size + np.arange(new.size).reshape(new.shape)[covered]
    return (np.concatenate([x.ravel(), new.ravel()])[numbers],)


@op("dim_scatter_add")
def _scatter_add(inputs, attrs, shard):
    x, index, src = inputs
    cells = list(np.indices(index.shape))
    cells[attrs["dim"]] = index
    target = np.ravel_multi_index(cells, x.shape)[..., None] == np.arange(x.size)
    covered = src[tuple(map(slice, index.shape))]
    return (x + np.tensordot(covered, target * 1.0, axes=index.ndim).reshape(x.shape),)


def _flat_rows(indices, shape):
    depth = indices.shape[-1]
    return np.ravel_multi_index(tuple(np.moveaxis(indices, -1, 0)), shape[:depth])


@op("scatter_nd")
def _scatter_nd(inputs, attrs, shard):
    (indices, updates), shape = inputs, attrs["shape"]
    rows = _flat_rows(indices, shape)
    target = rows[..., None] == np.arange(math.prod(shape[: indices.shape[-1]]))
    axes = list(range(rows.ndim))
    return (np.tensordot(target * 1.0, updates, axes=(axes, axes)).reshape(shape),)


@op("tensor_scatter_nd_update")
def _tensor_scatter(inputs, attrs, shard):
    x, indices, updates = inputs
    numbers = np.arange(x.size).reshape(x.shape)
    cells = tuple(np.moveaxis(indices, -1, 0))
    numbers[cells] = x.size + np.arange(updates.size).reshape(updates.shape)
    return (np.concatenate([x.ravel(), updates.ravel()])[numbers],)


@op("one_hot")
def _one_hot(inputs, attrs, shard):
    return ((inputs[0][..., None] == np.arange(attrs["depth"])).astype(int),)


# shapes


@op("reshape")
def _reshape(inputs, attrs, shard):
    return (inputs[0].reshape(attrs["shape"]),)


@op("squeeze")
def _squeeze(inputs, attrs, shard):
    return (np.squeeze(inputs[0], axis=attrs["axes"]),)


@op("expand_dims")
def _expand_dims(inputs, attrs, shard):
    return (np.expand_dims(inputs[0], attrs["axis"]),)


@op("transpose")
def _transpose(inputs, attrs, shard):
    return (np.transpose(inputs[0], attrs["perm"]),)


@op("expand")
def _expand(inputs, attrs, shard):
    return (inputs[0] * np.ones(attrs["expand_shape"]),)


@op("narrow")
def _narrow(inputs, attrs, shard):
    cut = slice(attrs["start"], attrs["start"] + attrs["length"])
    return (inputs[0][(slice(None),) * attrs["dim"] + (cut,)],)


@op("slice")
def _slice(inputs, attrs, shard):
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    return (inputs[0][tuple(slice(*cut) for cut in cuts)],)


@op("slice_update")
def _slice_update(inputs, attrs, shard):
    ref, value = inputs
    cuts = zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)
    numbers = np.arange(ref.size).reshape(ref.shape)
    numbers[tuple(slice(*cut) for cut in cuts)] = ref.size + np.arange(value.size).reshape(
        value.shape
    )
    return (np.concatenate([ref.ravel(), value.ravel()])[numbers],)


@op("unfold_tensor")
def _unfold_tensor(inputs, attrs, shard):
    (x,), dim, size = inputs, attrs["dimension"], attrs["size"]
    starts = range(0, x.shape[dim] - size + 1, attrs["step"])
    places = np.array([range(start, start + size) for start in starts])
    return (np.moveaxis(x[(slice(None),) * dim + (places,)], dim + 1, -1),)


@op("concat")
def _concat(inputs, attrs, shard):
    return (np.concatenate(inputs, axis=attrs["axis"]),)


@op("stack")
def _stack(inputs, attrs, shard):
    return (np.stack(inputs, axis=attrs["axis"]),)


@op("roll")
def _roll(inputs, attrs, shard):
    (x,) = inputs
    for shift, dim in zip(attrs["shifts"], attrs["dims"], strict=True):
        x = np.roll(x, shift, axis=dim)
    return (x,)


@op("flip")
def _flip(inputs, attrs, shard):
    (dim,) = attrs["dims"]
    return (inputs[0][(slice(None),) * dim + (slice(None, None, -1),)],)


@op("tril", "triu")
def _triangle(inputs, attrs, shard):
    (x,) = inputs
    mask = (np.tril if shard.op.kind == "tril" else np.triu)(np.ones(x.shape), attrs["diagonal"])
    return (x * mask,)


# sources and the graph's own


@op("constant")
def _constant(inputs, attrs, shard):
    return (np.full(attrs["shape"], attrs["floating_value"]),)


@op("arange")
def _arange(inputs, attrs, shard):
    return (np.arange(attrs["integer_start"], attrs["integer_limit"], attrs["integer_delta"]),)


@op("repeat_interleave")
def _repeat_interleave(inputs, attrs, shard):
    return (np.repeat(np.arange(len(inputs[0])), inputs[0]),)


@op("eye")
def _eye(inputs, attrs, shard):
    return (np.eye(attrs["rows"], attrs["cols"]),)


@op("opaque")
def _opaque(inputs, attrs, shard):
    """A layer; further arguments scale its rows."""
    x, *scales, weight = inputs
    rows = np.tanh(np.dot(x, weight))
    for scale in scales:
        rows = rows * np.mean(scale, axis=-1, keepdims=True)
    return (rows,)
