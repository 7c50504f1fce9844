"""Reductions, order statistics and running sums."""

from .case import case, out
from .draw import f, flags, index, nans

REDUCE = (
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
    case("", "cumsum", (f(4, 6, 8),), out(4, 6, 8), dim=1),
    case("", "top_k", (f(4, 6, 8),), out(4, 6, 2, dtype="int64"), k=2, sorted=True),
    case("", "arg_sort", (f(4, 6, 8),), out(4, 6, 8, dtype="int64"), direction="ASCENDING"),
)  # fmt: skip
