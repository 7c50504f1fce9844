"""Eager OneFlow functions, one or more for each operator kind, that the kernels must repeat."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn.functional as F

from autoddl.runtime.oneflow.experts import moe_combine, moe_dispatch

_C = flow._C


@dataclass(frozen=True)
class Case:
    """`function` on `inputs` (NumPy arrays) traces to an operator of `kind`, among others.

    Float inputs get gradients, but for the `constant` ones (by number).
    """

    kind: str
    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    constant: tuple[int, ...] = ()


def real(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def unit(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(0.1, 0.9, shape).astype(np.float32)


def above(*shape: int) -> np.ndarray:
    return unit(*shape) + 1.0


def index(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, n, shape).astype(np.int64)


def mask(*shape: int) -> np.ndarray:
    return (index(2, *shape) > 0).astype(bool)


X, Y, ROW = real(4, 6), real(4, 6) + 0.3, real(6)
IMAGE = real(2, 4, 8, 8)


def _one(kind: str, function: Callable[..., Any], *inputs: np.ndarray, constant=()) -> Case:
    return Case(kind, function, inputs, constant)


UNARY = [
    _one(kind, getattr(_C, name), values)
    for kind, name, values in [
        *((k, k, X) for k in ("relu", "gelu", "fast_gelu", "quick_gelu", "tanh", "sigmoid")),
        *((k, k, X) for k in ("silu", "mish", "selu", "softsign", "hardswish")),
        *((k, k, X) for k in ("hardsigmoid", "exp", "expm1", "square", "abs", "reciprocal")),
        *((k, k, X) for k in ("sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "erf", "erfc")),
        *((k, k, X) for k in ("floor", "ceil", "round", "rint", "trunc", "sign", "negative")),
        *((k, k, X) for k in ("reciprocal_no_nan", "isnan", "isinf", "isfinite", "logical_not")),
        *((k, k, unit(4, 6)) for k in ("asin", "acos", "atanh", "log", "log1p", "log2", "sqrt")),
        *((k, k, unit(4, 6)) for k in ("log10", "lgamma")),
        ("log_sigmoid", "logsigmoid", X),
        ("rsqrt", "rsqrt", unit(4, 6)),
        ("acosh", "acosh", above(4, 6)),
    ]
]

ATTRIBUTES = [
    _one("elu", lambda x: F.elu(x, 0.7), X),
    _one("celu", lambda x: F.celu(x, alpha=0.7), X),
    _one("leaky_relu", lambda x: F.leaky_relu(x, 0.2), X),
    _one("softplus", lambda x: F.softplus(x, 2.0, 1.5), X),
    _one("softshrink", lambda x: F.softshrink(x, alpha=0.4), X),
    _one("hardshrink", lambda x: F.hardshrink(x, lambd=0.4), X),
    _one("hardtanh", lambda x: F.hardtanh(x, -0.4, 0.6), X),
    _one("threshold", lambda x: F.threshold(x, threshold=0.1, value=2.0), X),
    _one("scalar_add", lambda x: x + 1.5, X),
    _one("scalar_add", lambda x: x + 2, index(9, 4)),
    _one("scalar_mul", lambda x: x * 1.5, X),
    _one("scalar_mul", lambda x: x * 3, index(9, 4)),
    _one("scalar_div", lambda x: x / 3.0, X),
    _one("scalar_pow", lambda x: x**2.5, unit(4, 6)),
    _one("scalar_reverse_pow", lambda x: 2.0**x, X),
    _one("scalar_fmod", lambda x: flow.fmod(x, 0.7), X),
    _one("scalar_floordiv", lambda x: x // 2, index(9, 4, 6)),
    _one("scalar_logical_equal", lambda x: x == 1, index(3, 4, 6)),
    _one("scalar_logical_not_equal", lambda x: x != 1, index(3, 4, 6)),
    _one("scalar_logical_less", lambda x: x < 0.2, X),
    _one("scalar_logical_less_equal", lambda x: x <= 0.2, X),
    _one("scalar_logical_greater", lambda x: x > 0.2, X),
    _one("scalar_logical_greater_equal", lambda x: x >= 0.2, X),
    _one("scalar_logical_and", lambda x: flow.logical_and(x, 1), index(2, 4, 6)),
    _one("scalar_logical_or", lambda x: flow.logical_or(x, 0), index(2, 4, 6)),
    _one("scalar_logical_xor", lambda x: flow.logical_xor(x, 1), index(2, 4, 6)),
    _one("clip_by_scalar", lambda x: flow.clamp(x, -0.5, 0.5), X),
    _one("clip_by_scalar_min", lambda x: flow.clamp(x, min=-0.5), X),
    _one("clip_by_scalar_max", lambda x: flow.clamp(x, max=0.5), X),
    _one("cast", lambda x: x.to(flow.float64), X),
    _one("cast", lambda x: x.to(flow.float32), index(9, 4)),
    _one("prelu", lambda x, a: F.prelu(x, a), real(2, 3, 4), real(3)),
    _one("prelu", lambda x, a: F.prelu(x, a), real(2, 3, 4), real(1)),
]

BINARY = [
    _one("broadcast_add", lambda x, y: x + y, X, ROW),
    _one("add_n", lambda x, y: x + y, X, Y),
    _one("add_n", lambda x, y, z: flow.add(flow.add(x, y), z), X, Y, X),
    _one("broadcast_sub", lambda x, y: x - y, X, ROW),
    _one("broadcast_mul", lambda x, y: x * y, X, ROW),
    _one("broadcast_div", lambda x, y: x / y, X, unit(6)),
    _one("broadcast_maximum", flow.maximum, X, ROW),
    _one("broadcast_minimum", flow.minimum, X, ROW),
    _one("elementwise_maximum", flow.maximum, X, Y),
    _one("elementwise_minimum", flow.minimum, X, Y),
    _one("broadcast_pow", flow.pow, unit(4, 6), ROW),
    _one("pow", flow.pow, unit(4, 6), Y),
    _one("broadcast_fmod", flow.fmod, X, unit(6)),
    _one("broadcast_fmod", flow.fmod, X, unit(4, 6)),
    _one("floordiv", flow.floor_divide, X, unit(4, 6)),
    _one("atan2", flow.atan2, X, Y),
    _one("broadcast_equal", flow.eq, index(3, 4, 6), index(3, 6)),
    _one("broadcast_not_equal", flow.ne, index(3, 4, 6), index(3, 6)),
    _one("broadcast_less", flow.lt, X, ROW),
    _one("broadcast_less_equal", flow.le, X, ROW),
    _one("broadcast_greater", flow.gt, X, ROW),
    _one("broadcast_greater_equal", flow.ge, X, ROW),
    _one("broadcast_logical_and", flow.logical_and, mask(4, 6), mask(6)),
    _one("broadcast_logical_or", flow.logical_or, mask(4, 6), mask(6)),
    _one("broadcast_logical_xor", flow.logical_xor, mask(4, 6), mask(6)),
    _one("bias_add", lambda a, b: _C.bias_add(a, b, axis=1), IMAGE, real(4)),
    _one("broadcast_isclose_neq_nan", lambda x, y: flow.isclose(x, y, 0.5), X, Y),
    _one("broadcast_isclose_eq_nan", lambda x, y: flow.isclose(x, y, 0.5, equal_nan=True), X, Y),
    _one("masked_fill", lambda x, m: x.masked_fill(m, -1e4), X, mask(4, 6)),
    _one("masked_fill", lambda x, m: x.masked_fill(m, 0.0), X, mask(4, 6)),
    _one("where", flow.where, mask(4, 6), X, Y),
    _one("where_scalar_x", lambda m, y: flow.where(m, 0.5, y), mask(4, 6), Y),
    _one("where_scalar_xy", lambda m: flow.where(m, 0.5, 2.0), mask(4, 6)),
    _one("where_scalar_y", lambda m, x: flow.where(m, x, 0.5), mask(4, 6), X),
]

PRODUCTS = [
    _one("matmul", flow.matmul, real(4, 6), real(6, 5)),
    _one("matmul", lambda a, b: _C.matmul(a, b, False, True), real(4, 6), real(5, 6)),
    _one("matmul", lambda a, b: _C.matmul(a, b, True, False), real(6, 4), real(6, 5)),
    _one("broadcast_matmul", flow.matmul, real(2, 4, 6), real(6, 5)),
    _one("broadcast_matmul", lambda a, b: F.linear(a, b), real(2, 4, 6), real(5, 6)),
    _one("batch_matmul", flow.matmul, real(3, 4, 6), real(3, 6, 5)),
    _one("batch_matmul", lambda a, b: flow.matmul(a, b.transpose(-1, -2)), real(3, 4, 6),
         real(3, 5, 6)),
    _one("matrix_vector_product", flow.matmul, real(4, 6), real(6)),
    _one("vector_matrix_product", flow.matmul, real(6), real(6, 5)),
    _one("dot", flow.dot, real(6), real(6) + 1),
    _one("linalg_cross", lambda x, y: flow.cross(x, y, dim=1), real(4, 3), real(4, 3) + 1),
    _one("inv", lambda x: flow.inverse(x), real(2, 3, 3)),
    _one("conv1d", lambda x, w: F.conv1d(x, w, padding=1), real(2, 4, 8), real(6, 4, 3)),
    _one("conv2d", lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0), dilation=2), IMAGE,
         real(6, 4, 3, 3)),
    _one("conv2d", lambda x, w: F.conv2d(x, w, groups=2), IMAGE, real(6, 2, 3, 3)),
    _one("conv3d", lambda x, w: F.conv3d(x, w), real(2, 2, 4, 4, 4), real(3, 2, 2, 2, 2)),
    _one("deconv1d", lambda x, w: _C.deconv1d(x, w, None, 1, 0, 0, 1, 1), real(2, 4, 8),
         real(4, 6, 3)),
    _one("deconv2d", lambda x, w: _C.deconv2d(x, w, None, 2, (1, 0), (1, 0), 1, 2), IMAGE,
         real(4, 6, 3, 3)),
    _one("deconv2d", lambda x, w: _C.deconv2d(x, w, None, 1, 0, 0, 2, 1), IMAGE,
         real(4, 3, 3, 3)),
    _one("deconv3d", lambda x, w: _C.deconv3d(x, w, None, 2, 0, 0, 1, 1), real(2, 2, 3, 3, 3),
         real(2, 3, 2, 2, 2)),
]  # fmt: skip


def _unpooled(x: flow.Tensor, dims: int) -> flow.Tensor:
    pool = getattr(flow.nn, f"MaxPool{dims}d")(2, return_indices=True)
    values, indices = pool(x)
    unpool = getattr(flow.nn, f"MaxUnpool{dims}d")(2)
    return unpool(values * 2, indices, output_size=x.shape)


POOLS = [
    _one("max_pool_1d", lambda x: F.max_pool1d(x, 3, 2, 1), real(2, 4, 8)),
    _one("max_pool_2d", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    _one("max_pool_2d", lambda x: F.max_pool2d(x, 3, 2, 0, 1, False, True), IMAGE),
    _one("max_pool_3d", lambda x: F.max_pool3d(x, 2), real(1, 2, 4, 4, 4)),
    _one("avg_pool_1d", lambda x: F.avg_pool1d(x, 3, 2, 1), real(2, 4, 8)),
    _one("avg_pool_2d", lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    _one("avg_pool_2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGE),
    _one("avg_pool_3d", lambda x: F.avg_pool3d(x, 2), real(1, 2, 4, 4, 4)),
    _one("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), real(2, 4, 8)),
    *(_one(kind, lambda x, n=n: _unpooled(x, n), values) for n, values in (
        (1, real(2, 4, 7)), (2, IMAGE), (3, real(1, 2, 4, 4, 4)))
      for kind in (f"max_pool_{n}d_indices", f"max_unpool_{n}d")),
    _one("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 2)), IMAGE),
    _one("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 2), real(1, 2, 4, 4, 4)),
    _one("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), real(2, 4, 8)),
    _one("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 3), IMAGE),
    _one("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 2), real(1, 2, 4, 4, 4)),
    _one("upsample_nearest_2d", lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
         IMAGE),
    _one("upsample_bilinear_2d", lambda x: F.interpolate(
        x, scale_factor=2.0, mode="bilinear", align_corners=True), IMAGE),
    _one("upsample_bicubic_2d", lambda x: F.interpolate(x, size=(5, 7), mode="bicubic"), IMAGE),
    *(_one(f"upsample_{kind}", lambda x, mode=mode: F.interpolate(x, scale_factor=2.0, mode=mode),
           values)
      for kind, mode, values in [
          ("nearest_1d", "nearest", real(2, 4, 8)), ("linear_1d", "linear", real(2, 4, 8)),
          ("nearest_3d", "nearest", real(1, 2, 3, 4, 2)),
          ("trilinear_3d", "trilinear", real(1, 2, 3, 4, 2)),
      ]),
    _one("pad", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), IMAGE),
    _one("reflection_pad1d", lambda x: flow.nn.ReflectionPad1d((1, 2))(x), real(2, 4, 8)),
    _one("reflection_pad2d", lambda x: F.pad(x, (1, 2, 0, 1), "reflect"), IMAGE),
    _one("replication_pad1d", lambda x: flow.nn.ReplicationPad1d((1, 2))(x), real(2, 4, 8)),
    _one("replication_pad2d", lambda x: F.pad(x, (1, 2, 0, 1), "replicate"), IMAGE),
    _one("unfold", lambda x: F.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)), IMAGE),
    _one("fold", lambda x: F.fold(x, (8, 6), (2, 3), stride=(2, 1)), real(2, 12, 16)),
    _one("grid_sample", lambda x, g: F.grid_sample(x, g, "nearest", "border"), IMAGE,
         unit(2, 3, 5, 2)),
    _one("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=True), IMAGE,
         unit(2, 3, 5, 2)),
    _one("affine_grid", lambda theta: F.affine_grid(theta, (2, 4, 3, 5)), real(2, 2, 3)),
]  # fmt: skip

REDUCTIONS = [
    _one("reduce_sum", lambda x: x.sum(dim=(0, 2)), real(3, 4, 5)),
    _one("reduce_sum", lambda x: x.sum(dim=1, keepdim=True), X),
    _one("reduce_sum", lambda x: x.sum(), X),
    _one("reduce_max", lambda x: _C.reduce_max(x, (1,), True), X),
    _one("reduce_min", lambda x: _C.reduce_min(x, (1,), False), X),
    _one("reduce_prod", lambda x: flow.prod(x, 1), X),
    _one("reduce_any", lambda x: flow.any(x, 1), mask(4, 6)),
    _one("reduce_all", lambda x: flow.all(x, 1), mask(4, 6)),
    _one("argmax", lambda x: flow.argmax(x, -1), X),
    _one("var", lambda x: flow.var(x, dim=(1,), unbiased=True, keepdim=True), X),
    _one("var", lambda x: flow.var(x, dim=(0, 2), unbiased=False), real(3, 4, 5)),
    _one("reduce_nansum", lambda x: flow.nansum(flow.log(x), 1), abs(X)),
    _one("median_with_indices", lambda x: flow.median(x, 1)[0], real(3, 4, 5)),
    _one("median_indices", lambda x: flow.median(x, 1)[1], real(3, 4, 5)),
    _one("cumsum", lambda x: flow.cumsum(x, 1), X),
    _one("top_k", lambda x: flow.topk(x, 2)[1], X),
    _one("arg_sort", lambda x: flow.argsort(x, -1), X),
    _one("softmax", lambda x: flow.softmax(x, dim=-1), X),
    _one("log_softmax", lambda x: flow.log_softmax(x, dim=-1), X),
]


def _shifted(x: flow.Tensor) -> flow.Tensor:
    y = x * 2.0
    y[:, 1::2] = x[:, :3]
    return y


SHAPES = [
    _one("reshape", lambda x: x.reshape(2, 12), X),
    _one("transpose", lambda x: x.permute(2, 0, 1), real(3, 4, 5)),
    _one("narrow", lambda x: x.narrow(1, 2, 3), X),
    _one("slice", lambda x: x[1:3, ::2], X),
    _one("expand", lambda x: x.expand(5, 4, 6), X),
    _one("expand", lambda x: x.expand(4, 6), real(4, 1)),
    _one("squeeze", lambda x: x.squeeze(1), real(4, 1, 6)),
    _one("expand_dims", lambda x: x.unsqueeze(1), X),
    _one("slice_update", _shifted, X),
    _one("unfold_tensor", lambda x: x.unfold(1, 3, 2), X),
    _one("repeat_interleave", lambda x: x.repeat_interleave(2, dim=1), X),
    _one(
        "repeat_interleave",
        lambda x: flow.repeat_interleave(x, flow.tensor([0, 2, 1, 3]), dim=0, output_size=6),
        X,
    ),
    _one("concat", lambda x, y: flow.cat([x, y], dim=1), X, real(4, 3)),
    _one("stack", lambda x, y: flow.stack([x, y], dim=1), X, Y),
    _one("roll", lambda x: flow.roll(x, (1, 2), (0, 1)), X),
    _one("flip", lambda x: flow.flip(x, [0, 1]), X),
    _one("tril", lambda x: flow.tril(x, 1), X),
    _one("triu", lambda x: flow.triu(x, -1), X),
    _one("arange", lambda x: x + flow.arange(1, 13, 2), X),
    _one("arange", lambda x: x + flow.arange(0.5, 3.5, 0.5), X),
    _one("constant", lambda x: x * flow.full((6,), 0.5), X),
    _one("constant", lambda x: x + flow.full((6,), 3, dtype=flow.int64), X),
    _one("eye", lambda x: flow.matmul(x, flow.eye(6, 4)), X),
]

LOOKUPS = [
    _one("gather", lambda w, i: _C.gather(w, i, 0), real(9, 5), index(9, 2, 3)),
    _one("gather", lambda w, i: _C.gather(w, i, 1), real(4, 9), index(9, 2, 3)),
    _one("embedding", lambda w, i: F.embedding(i, w, padding_idx=1), real(9, 5), index(9, 2, 3)),
    _one("gather_nd", lambda w, i: _C.gather_nd(w, i), real(3, 3, 5), index(3, 4, 2)),
    _one("dim_gather", lambda x, i: flow.gather(x, 1, i), X, index(6, 4, 2)),
    _one("batch_gather", lambda x, i: flow.batch_gather(x, i), real(4, 6, 3), index(6, 4, 2)),
    _one("searchsorted", lambda x: flow.searchsorted(flow.tensor([-0.5, 0.5]), x), X),
    _one("searchsorted", lambda x: flow.searchsorted(x, x, out_int32=True, right=True), np.sort(X)),
    _one("in_top_k", lambda x, i: flow.in_top_k(i, x, 2), X, index(6, 4)),
    _one(
        "dim_scatter_update", lambda x, y, i: _C.scatter(x, 1, i, y), X, real(4, 1), index(6, 4, 1)
    ),
    _one("dim_scatter_update_scalar", lambda x, i: flow.scatter(x, 1, i, 0.5), X, index(6, 4, 2)),
    _one("dim_scatter_add", lambda x, y, i: x.scatter_add(1, i, y), X, Y, index(6, 4, 6)),
    _one("scatter_nd", lambda x, i: flow.scatter_nd(i, x, [9, 6]), X, index(3, 4, 1)),
    _one(
        "tensor_scatter_nd_update",
        lambda x, y, i: flow.tensor_scatter_nd_update(x, i, y[:2]),
        X,
        Y,
        index(4, 2, 1),
    ),
    _one("one_hot", lambda i: F.one_hot(i, 5), index(5, 4)),
]


TOKENS, PLACES = real(2, 6, 4), real(3, 2, 8, 4)
EXPERT, POSITION = (
    index(3, 2, 6, 2),
    np.random.default_rng(0).permuted(np.tile(np.arange(12), (2, 1)), axis=1).reshape(2, 6, 2),
)
EXPERTS = [
    _one(
        "moe_dispatch",
        lambda x, e, p: moe_dispatch(x, e, p, experts=3, capacity=8),
        TOKENS,
        EXPERT,
        POSITION,
    ),
    _one(
        "moe_dispatch",
        lambda x, e, p: moe_dispatch(x, e[..., :1], p[..., :1], experts=3, capacity=8),
        TOKENS,
        EXPERT,
        POSITION,
    ),
    _one(
        "moe_combine",
        lambda y, w, e, p: moe_combine(y, e, p, w),
        PLACES,
        real(2, 6, 2),
        EXPERT,
        POSITION,
    ),
]


def _nll(x: flow.Tensor, t: flow.Tensor) -> flow.Tensor:
    return F.cross_entropy(x, t, ignore_index=2)


def _ctc(x: flow.Tensor, *rest: flow.Tensor) -> flow.Tensor:
    return flow.nn.CTCLoss()(F.log_softmax(x, -1), *rest)


LOSSES = [
    _one("nll", _nll, X, index(6, 4)),
    _one("nll", lambda x, t: F.cross_entropy(x, t, reduction="none"), X, index(6, 4)),
    _one("nll", lambda x, t, w: F.cross_entropy(x, t, w), X, index(6, 4), unit(6),
         constant=(2,)),
    _one("sparse_softmax_cross_entropy", lambda x, t: _C.sparse_softmax_cross_entropy(x, t), X,
         index(6, 4)),
    _one("softmax_cross_entropy", lambda x, t: _C.softmax_cross_entropy(x, t), X, unit(4, 6),
         constant=(1,)),
    _one("smooth_l1_loss", lambda x, t: _C.smooth_l1_loss(x, t, 0.7, "mean"), X, Y),
    *(_one(kind, _ctc, real(7, 4, 5), index(4, 4, 3) + 1, index(1, 4) + 7, index(3, 4) + 1)
      for kind in ("ctc_loss", "xdivy")),
    _one("kl_div_loss", lambda x, t: flow.nn.KLDivLoss()(x, t), X, unit(4, 6)),
    _one("binary_cross_entropy", lambda x, t: flow.nn.BCELoss()(x, t), unit(4, 6), unit(4, 6) / 2,
         constant=(1,)),
    _one("binary_cross_entropy_with_logits_reduce_mean",
         lambda x, t: flow.nn.BCEWithLogitsLoss()(x, t), X, unit(4, 6), constant=(1,)),
    _one("binary_cross_entropy_with_logits",
         lambda x, t: flow.nn.BCEWithLogitsLoss(reduction="sum")(x, t), X, unit(4, 6),
         constant=(1,)),
    _one("binary_cross_entropy_with_logits",
         lambda x, t, w: flow.nn.BCEWithLogitsLoss(weight=w)(x, t), X, unit(4, 6), unit(4, 6),
         constant=(1, 2)),
    _one("binary_cross_entropy_with_logits",
         lambda x, t, w: flow.nn.BCEWithLogitsLoss(pos_weight=w)(x, t), X, unit(4, 6), unit(6),
         constant=(1, 2)),
]  # fmt: skip

NORMS = [
    _one("l2_normalize", lambda x: F.normalize(x, dim=1), X),
]

CASES = [
    *UNARY, *ATTRIBUTES, *BINARY, *PRODUCTS, *POOLS, *REDUCTIONS, *SHAPES, *LOOKUPS, *LOSSES,
    *NORMS, *EXPERTS,
]  # fmt: skip
