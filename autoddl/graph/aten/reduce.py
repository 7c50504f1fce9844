"""Reductions, orders and running sums."""

from __future__ import annotations

from ..builder import GraphBuilder, Ref, Unknown, broadcast, left, product
from .batched import batched
from .table import Args, aten


def _dims(a: Args, key: str = "dim") -> tuple[int, ...]:
    value = a.get(key)
    return () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)


@aten("sum", "mean")
def summed(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    if not x.ndim:
        return x
    reduced = e.sum if a["name"] == "sum" else e.mean
    return reduced(e.cast(x, a["out"][1]), _dims(a), bool(a.get("keepdim")))


@aten("linalg_vector_norm", "norm")
def norm(e: GraphBuilder, a: Args) -> Ref:
    order = a["ord"] if "ord" in a else a["p"]
    x, dims, keep = e.cast(a["self"], a["out"][1]), _all_dims(e, a), bool(a.get("keepdim"))
    if order in (1, float("inf")):
        sizes = e.same("abs", x)
        largest = {**a, "self": sizes, "name": "amax"}
        return e.sum(sizes, dims, keep) if order == 1 else extremum(e, largest)
    if order not in (None, 2):
        rest = [d for d in range(x.ndim) if d not in dims]
        shape = [x.shape[d] for d in rest]
        last = e.reshaped(
            e.permuted(x, [*rest, *dims]), (*shape, product(x.shape[d] for d in dims))
        )
        given = {"name": "linalg_vector_norm", "self": last, "ord": order, "dim": (-1,)}
        found = batched(e, {**given, "out": (shape, x.dtype)})
        assert isinstance(found, Ref)
        return e.reshaped(found, a["out"][0])
    return root(e, e.sum(e.same("square", x), dims, keep))


@aten("pairwise_distance")
def distance(e: GraphBuilder, a: Args) -> Ref:
    """Of the last dim, less a little that keeps it from 0."""
    x = e.ref(a["x1"])
    apart = e.op("broadcast_sub", [x, a["x2"]], broadcast(x.shape, e.ref(a["x2"]).shape))
    apart = e.same("scalar_add", apart, operand=a["eps"])
    return norm(e, {**a, "self": apart, "dim": -1, "out": a["out"]})


# Rows: ATen's own limit, beyond which it takes the product, which rounds otherwise.
_FEW_ROWS = 25


@aten("_cdist_forward", "cdist")
def distances(e: GraphBuilder, a: Args) -> Ref:
    """Between all rows x [..., n, d] and y [..., m, d]."""
    x, y, (shape, _) = e.ref(a["x1"]), e.ref(a["x2"]), a["out"]
    if a["p"] != 2:
        given = {"x1": x, "x2": y, "p": a["p"], "out": a["out"]}
        found = batched(e, {"name": "cdist", **given})
        assert isinstance(found, Ref)
        return found
    if max(x.shape[-2], y.shape[-2]) <= _FEW_ROWS:
        one = e.reshaped(x, (*x.shape[:-1], 1, x.shape[-1]))
        other = e.reshaped(y, (*y.shape[:-2], 1, *y.shape[-2:]))
        apart = e.op("broadcast_sub", [one, other], (*shape, x.shape[-1]))
        return root(e, e.sum(e.same("square", apart), (-1,)))
    both = e.same("scalar_mul", e.product(x, y, transpose_b=True), operand=-2)
    squares = e.sum(e.same("square", x), (-1,), keep=True)
    others = e.sum(e.same("square", y), (-1,))
    others = e.reshaped(others, (*others.shape[:-1], 1, others.shape[-1]))
    found = e.op("broadcast_add", [both, squares], shape)
    found = e.op("broadcast_add", [found, others], shape)
    return root(e, e.same("clip_by_scalar_min", found, floating_min=0.0))


@aten("bucketize", "searchsorted")
def bucketize(e: GraphBuilder, a: Args) -> Ref:
    """How many of the ascending boundaries are less than each element, or no greater."""
    x = e.ref(a["self"])
    bounds = e.ref(a["boundaries"] if "boundaries" in a else a["sorted_sequence"])
    if bounds.ndim != 1 or a.get("sorter") is not None:
        raise Unknown("a search in several sequences, or in one that is not in order")
    kind = "greater_equal" if a["right"] or a.get("side") == "right" else "greater"
    wide = e.reshaped(x, (*x.shape, 1))
    above = e.op(f"broadcast_{kind}", [wide, bounds], (*x.shape, *bounds.shape), "bool")
    return e.cast(e.sum(e.cast(above, "int64"), (-1,)), a["out"][1])


def root(e: GraphBuilder, x: Ref) -> Ref:
    """The square root, whose gradient at 0 is 0, as ATen's norms and deviations have it."""
    none = e.op("scalar_logical_equal", [x], x.shape, "bool", operand=0)
    root = e.same("sqrt", e.op("masked_fill", [x, none], x.shape, operand=1.0))
    return e.op("masked_fill", [root, none], x.shape, operand=0.0)


def _all_dims(e: GraphBuilder, a: Args) -> tuple[int, ...]:
    ndim = e.ref(a["self"]).ndim
    return tuple(sorted(d % ndim for d in _dims(a))) or tuple(range(ndim))


@aten("amax", "amin", "all", "any", "prod")
def extremum(e: GraphBuilder, a: Args) -> Ref:
    x, keep = e.ref(a["self"]), bool(a.get("keepdim"))
    dims = _all_dims(e, a)
    kind = {"amax": "max", "amin": "min"}.get(a["name"], a["name"])
    shape = left(x.shape, dims, keep)
    return e.op(f"reduce_{kind}", [x], shape, a["out"][1], axis=dims, keepdims=keep)


@aten("var", "std")
def var(e: GraphBuilder, a: Args) -> Ref:
    x, keep = e.ref(a["self"]), bool(a.get("keepdim"))
    correction = a["correction"] if "correction" in a else int(a.get("unbiased", True))
    correction = 1 if correction is None else correction
    dims = _all_dims(e, a)
    count = product(x.shape[d] for d in dims)
    if correction not in (0, 1) and (getattr(count, "exponent", 0) or correction >= count):
        raise Unknown(f"a variance with correction={correction}")
    found = e.op(
        "var", [x], left(x.shape, dims, keep), dim=dims, keepdim=keep, unbiased=correction == 1
    )
    if correction not in (0, 1):
        found = e.same("scalar_mul", found, operand=count / (count - correction))
    return root(e, found) if a["name"] == "std" else found


@aten("var_mean", "std_mean")
def with_mean(e: GraphBuilder, a: Args) -> tuple[Ref, Ref]:
    spread = var(e, {**a, "name": a["name"][:3]})
    return spread, e.mean(e.ref(a["self"]), _all_dims(e, a), bool(a.get("keepdim")))


@aten("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(e: GraphBuilder, a: Args) -> Ref:
    """Over one dim, which is brought to the end."""
    x = e.cast(a["self"], a["out"][1])
    kind = a["name"].lstrip("_")
    if a["dim"] % x.ndim == x.ndim - 1:
        return e.same(kind, x)
    return e.swapped(e.same(kind, e.swapped(x, a["dim"], -1)), a["dim"], -1)


@aten("cumsum")
def cumsum(e: GraphBuilder, a: Args) -> Ref:
    return e.same("cumsum", e.cast(a["self"], a["out"][1]), dim=a["dim"])


@aten("cumprod")
def cumprod(e: GraphBuilder, a: Args) -> Ref:
    """In rounds: products of 1, 2, 4, ... factors are multiplied by those that end before them."""
    x = e.cast(a["self"], a["out"][1])
    size = x.shape[a["dim"]] if x.ndim else 1
    if getattr(size, "exponent", 0):
        raise Unknown("a running product over the batch")
    dim, step = a["dim"] % max(x.ndim, 1), 1
    while step < size:
        begin, rest = e.narrowed(x, dim, 0, step), e.narrowed(x, dim, step, size - step)
        before = e.narrowed(x, dim, 0, size - step)
        longer = e.op("broadcast_mul", [rest, before], rest.shape)
        x = e.op("concat", [begin, longer], x.shape, axis=dim)
        step *= 2
    return x


@aten("argmax", "argmin")
def argmax(e: GraphBuilder, a: Args) -> Ref:
    x = e.ref(a["self"])
    if a["dim"] is None:
        return e.reshaped(
            _largest(e, e.reshaped(x, (product(x.shape),)), 0, a["name"]), a["out"][0]
        )
    return e.reshaped(_largest(e, x, a["dim"], a["name"]), a["out"][0])


def _largest(e: GraphBuilder, x: Ref, dim: int, name: str) -> Ref:
    """Where the largest along a dim is, or the smallest; the dim stays with size 1."""
    x = e.swapped(x if name.endswith("max") else e.same("negative", x), dim, -1)
    found = e.op("argmax", [x], x.shape[:-1], "int64")
    return e.swapped(e.reshaped(found, (*found.shape, 1)), dim, -1)


@aten("max.dim", "min.dim")
def max_of_dim(e: GraphBuilder, a: Args) -> tuple[Ref, Ref]:
    """Of equal ones only the one that is taken gets the gradient."""
    x, (shape, _) = e.ref(a["self"]), a["out"][0]
    places = _largest(e, x, a["dim"], f"arg{a['name'][:3]}")
    values = e.op("dim_gather", [x, places], places.shape, x.dtype, dim=a["dim"] % x.ndim)
    return e.reshaped(values, shape), e.reshaped(places, shape)


@aten("topk", "sort")
def ordered(e: GraphBuilder, a: Args) -> tuple[Ref, Ref]:
    """The first in an order along a dim, or all, and where they are."""
    x = e.swapped(a["self"], a["dim"], -1)
    if a["name"] == "topk":
        attrs = {"k": a["k"], "sorted": a["sorted"]}
        key = x if a["largest"] else e.same("negative", x)
        places = e.op("top_k", [key], (*x.shape[:-1], a["k"]), "int64", **attrs)
    else:
        direction = "DESCENDING" if a["descending"] else "ASCENDING"
        places = e.op("arg_sort", [x], x.shape, "int64", direction=direction)
    values = e.op("dim_gather", [x, places], places.shape, x.dtype, dim=x.ndim - 1)
    return e.swapped(values, a["dim"], -1), e.swapped(places, a["dim"], -1)


@aten("max", "min")
def max_of_all(e: GraphBuilder, a: Args) -> Ref:
    if "other" in a:
        kind = {"max": "maximum", "min": "minimum"}[a["name"]]
        return e.op(f"broadcast_{kind}", [a["self"], a["other"]], *a["out"])
    x = e.ref(a["self"])
    dims = tuple(range(x.ndim))
    return e.op(f"reduce_{a['name']}", [x], (), axis=dims, keepdims=False)
