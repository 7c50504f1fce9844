"""Reductions, order statistics and running sums."""

import math

import autograd.numpy as np

from .case import case, f, flags, index, nans, out
from .reference import op, table

CASES = (
    case("last", "reduce_sum", (f(4, 6, 8),), out(4, 6), axis=(2,), keepdims=False),
    case("kept", "reduce_sum", (f(4, 6, 8),), out(4, 6, 1), axis=(2,), keepdims=True),
    case("two", "reduce_sum", (f(4, 6, 8),), out(6), axis=(0, 2), keepdims=False),
    case("all", "reduce_sum", (f(4, 6),), out(), axis=(0, 1), keepdims=False),
    case("ints", "reduce_sum", (index(9, 4, 6),), out(6, dtype="int64"), axis=(0,),
         keepdims=False),
    case("last", "reduce_mean", (f(4, 6, 8),), out(4, 6), axis=(2,), keepdims=False),
    case("all", "reduce_mean", (f(4, 6),), out(), axis=(0, 1), keepdims=False),
    *(case("", kind, (f(4, 6, 8),), out(4, 8), axis=(1,), keepdims=False)
      for kind in ("reduce_max", "reduce_min", "reduce_prod")),
    case("kept", "reduce_max", (f(4, 6, 8),), out(4, 1, 8), axis=(1,), keepdims=True),
    *(case("", kind, (flags(4, 6, 8),), out(4, 8, dtype="bool"), axis=(1,), keepdims=False)
      for kind in ("reduce_any", "reduce_all")),
    case("", "argmax", (f(4, 6, 8),), out(4, 6, dtype="int64")),
    case("last", "var", (f(4, 6, 8),), out(4, 6, 1), dim=(2,), keepdim=True, unbiased=False),
    case("unbiased", "var", (f(4, 6, 8),), out(4, 8), dim=(1,), keepdim=False, unbiased=True),
    case("two", "var", (f(4, 6, 8),), out(4, 1, 1), dim=(1, 2), keepdim=True, unbiased=False),
    case("all", "var", (f(4, 6),), out(), dim=(0, 1), keepdim=False, unbiased=True),
    case("", "reduce_nansum", (nans(4, 6, 8),), out(4, 8), axis=(1,), keepdims=False),
    case("", "median_with_indices", (f(4, 6, 8),), out(4, 6)),
    case("", "median_indices", (f(4, 6, 8),), out(4, 6, dtype="int64")),
    case("", "cumsum", (f(4, 6, 8),), out(4, 6, 8), dim=1),
    case("", "top_k", (f(4, 6, 8),), out(4, 6, 2, dtype="int64"), k=2, sorted=True),
    case("", "arg_sort", (f(4, 6, 8),), out(4, 6, 8, dtype="int64"), direction="ASCENDING"),
)  # fmt: skip


def _over(attrs):
    return {"axis": tuple(attrs["axis"]), "keepdims": attrs["keepdims"]}


table({
    "reduce_sum": lambda x, a: np.sum(x, **_over(a)),
    "reduce_max": lambda x, a: np.max(x, **_over(a)),
    "reduce_min": lambda x, a: np.min(x, **_over(a)),
    "reduce_any": lambda x, a: np.any(x, **_over(a)),
    "reduce_all": lambda x, a: np.all(x, **_over(a)),
    "reduce_prod": lambda x, a: np.prod(x, axis=a["axis"][0]),
    "reduce_nansum": lambda x, a: np.sum(np.where(np.isnan(x), 0.0, x), **_over(a)),
    "var": lambda x, a: np.var(x, tuple(a["dim"]), ddof=a["unbiased"], keepdims=a["keepdim"]),
    "argmax": lambda x, a: np.argmax(x, axis=-1),
    "arg_sort": lambda x, a: np.argsort(x, axis=-1),
    "top_k": lambda x, a: np.argsort(-x, axis=-1)[..., : a["k"]],
    "cumsum": lambda x, a: np.cumsum(x, axis=a["dim"]),
})  # fmt: skip


@op("reduce_mean")
def _mean(inputs, attrs, shard):
    axis = tuple(attrs["axis"])
    count = attrs.get("count", math.prod(inputs[0].shape[a] for a in axis))
    return (np.sum(inputs[0], axis=axis, keepdims=attrs["keepdims"]) / count,)


def _middle(x):
    order = np.argsort(getattr(x, "_value", x), axis=-1)
    return order[..., (x.shape[-1] - 1) // 2]


@op("median_indices")
def _median_indices(inputs, attrs, shard):
    return (_middle(inputs[0]),)


@op("median_with_indices")
def _median(inputs, attrs, shard):
    (x,) = inputs
    return (np.sum(x * (_middle(x)[..., None] == np.arange(x.shape[-1])), axis=-1),)
