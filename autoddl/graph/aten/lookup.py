"""Lookups by index."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..builder import GraphBuilder, Ref, Unknown, broadcast, product
from .batched import batched
from .reduce import max_of_dim
from .table import Args, aten


@aten("embedding")
def embedding(e: GraphBuilder, a: Args) -> Ref:
    """Rows of a table; one of them may get no gradient."""
    weight, indices = e.ref(a["weight"]), e.ref(a["indices"])
    shape = (*indices.shape, weight.shape[1])
    if a["padding_idx"] == -1 and not a["scale_grad_by_freq"]:
        return e.op("gather", [weight, indices], shape, axis=0)
    return e.op(
        "embedding", [weight, indices], shape, padding_idx=a["padding_idx"],
        scale_grad_by_freq=a["scale_grad_by_freq"],
    )  # fmt: skip


@aten("index_select")
def index_select(e: GraphBuilder, a: Args) -> Ref:
    return e.op("gather", [a["self"], a["index"]], *a["out"], axis=a["dim"])


def each_of(e: GraphBuilder, places: Ref, sizes: Sequence[int], dim: int = 0) -> Ref:
    """Indices of one dim, the same for all elements of the others."""
    shape = [*sizes[:dim], *places.shape, *sizes[dim:]]
    return e.expanded(
        e.reshaped(places, [n if d == dim else 1 for d, n in enumerate(shape)]), shape
    )


@aten("index_add", "index_copy", "index_fill")
def index_add(e: GraphBuilder, a: Args) -> Ref:
    """x with rows of a dim added to, or replaced."""
    x, places = e.ref(a["self"]), e.ref(a["index"])
    dim, name = a["dim"] % x.ndim, a["name"]
    each = each_of(e, places, [*x.shape[:dim], *x.shape[dim + 1 :]], dim)
    if name == "index_fill":
        if isinstance(a["value"], Ref):
            raise Unknown("index_fill with a computed value")
        attrs = {"dim": dim, "src_scalar": float(a["value"])}
        return e.op("dim_scatter_update_scalar", [x, each], x.shape, **attrs)
    source, alpha = a["source"], a.get("alpha", 1)
    source = source if alpha == 1 else e.same("scalar_mul", source, operand=alpha)
    kind = "dim_scatter_add" if name == "index_add" else "dim_scatter_update"
    return e.op(kind, [x, each, source], x.shape, dim=dim)


@aten("index_reduce")
def index_reduce(e: GraphBuilder, a: Args) -> Any:
    """`scatter_reduce`, whose index has a place for each element."""
    x, places = e.ref(a["self"]), e.ref(a["index"])
    dim = a["dim"] % x.ndim
    each = each_of(e, places, [*x.shape[:dim], *x.shape[dim + 1 :]], dim)
    given = {k: a[k] for k in ("reduce", "include_self", "out")}
    own = {"name": "scatter_reduce", "self": x, "dim": dim, "index": each, "src": a["source"]}
    return batched(e, {**own, **given})


@aten("gather")
def gather(e: GraphBuilder, a: Args) -> Ref:
    return e.op("dim_gather", [a["self"], a["index"]], *a["out"], dim=_dim(e, a))


def _dim(e: GraphBuilder, a: Args) -> int:
    return a["dim"] % max(e.ref(a["self"]).ndim, 1)


@aten("scatter", "scatter_add")
def scatter(e: GraphBuilder, a: Args) -> Ref:
    """x with values, or one value, at the index along a dim, or with them added there."""
    if a.get("reduce"):
        raise Unknown(f"scatter with reduce={a['reduce']!r}")
    inputs, dim = [a["self"], a["index"]], _dim(e, a)
    if "src" in a:
        kind = "dim_scatter_add" if a["name"] == "scatter_add" else "dim_scatter_update"
        return e.op(kind, [*inputs, a["src"]], *a["out"], dim=dim)
    return e.op("dim_scatter_update_scalar", inputs, *a["out"], dim=dim, src_scalar=a["value"])


@aten("one_hot")
def one_hot(e: GraphBuilder, a: Args) -> Ref:
    given = {
        f"{t}_{v}_value": n for t in ("floating", "integer") for v, n in (("on", 1), ("off", 0))
    }
    shape, dtype = a["out"]
    return e.op("one_hot", [a["self"]], shape, dtype, depth=shape[-1], dtype=dtype, **given)


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(e: GraphBuilder, a: Args) -> Any:
    """Sums or means of equally long bags of rows, as `torch.nn.EmbeddingBag` of [bags, length]."""
    indices, bags = e.ref(a["indices"]), a["out"][0][0][0]
    length = indices.shape[0] // bags if bags else 0
    starts = e.steps_along(a["offsets"], length * bags, length)
    if starts is None or a["include_last_offset"] or length * bags != indices.shape[0]:
        raise Unknown("an EmbeddingBag of bags that are not equally long")
    rows = e.reshaped(indices, (bags, length))
    each = embedding(e, {**a, "indices": rows, "padding_idx": -1})
    if a["per_sample_weights"] is not None:
        weights = e.reshaped(a["per_sample_weights"], (bags, length, 1))
        each = e.op("broadcast_mul", [each, weights], each.shape)
    counts = None
    if a["padding_idx"] >= 0:
        operand = a["padding_idx"]
        counts = e.op("scalar_logical_not_equal", [rows], rows.shape, "bool", operand=operand)
    return (_of_bags(e, each, counts, a["mode"]), None, None, None)


def _of_bags(e: GraphBuilder, each: Ref, counts: Ref | None, mode: int) -> Ref:
    """Sums (0), means (1) or maxima (2) of the rows that count; 0 where none does."""
    if counts is None:
        ways = e.sum, e.mean
        return ways[mode](each, (1,)) if mode < 2 else _largest_of(e, each)
    wide = e.reshaped(counts, (*counts.shape, 1))
    if mode == 2:
        hidden = e.op("logical_not", [wide], wide.shape)
        low = e.op("masked_fill", [each, hidden], each.shape, operand=float("-inf"))
        found = _largest_of(e, low)
        none = e.op("reduce_all", [hidden], (each.shape[0], 1), "bool", axis=(1,), keepdims=False)
        return e.op("masked_fill", [found, none], found.shape, operand=0.0)
    ones = e.cast(wide, each.dtype)
    found = e.sum(e.op("broadcast_mul", [each, ones], each.shape), (1,))
    if mode == 0:
        return found
    number = e.same("clip_by_scalar_min", e.sum(ones, (1,)), floating_min=1.0)
    return e.op("broadcast_div", [found, number], found.shape)


def _largest_of(e: GraphBuilder, each: Ref) -> Ref:
    """Along dim 1; of equal ones the first gets the gradient."""
    shape = each.shape[0], each.shape[2]
    a = {"name": "max.dim", "self": each, "dim": 1, "out": [(shape, each.dtype), (shape, "int64")]}
    return max_of_dim(e, a)[0]


def _merged(e: GraphBuilder, x: Ref, dims: Sequence[int], given: Mapping[int, Any]) -> Ref:
    """The places that several indices mean in the dims `dims`, run together."""
    total: Ref | None = None
    for d in dims:
        own = e.from_start(given[d], x.shape[d])
        if total is not None:
            scaled = e.same("scalar_mul", total, operand=x.shape[d])
            shape = broadcast(scaled.shape, own.shape)
            own = e.op("broadcast_add", [scaled, own], shape)
        total = own
    assert total is not None
    return total


def _given(e: GraphBuilder, a: Args) -> tuple[Ref, dict[int, Any], list[int]]:
    """The tensor, indices by its dims, and the shape that these are stretched to."""
    given = {d: i for d, i in enumerate(a["indices"]) if i is not None}
    if any((i.dtype if isinstance(i, Ref) else "") == "bool" for i in given.values()):
        raise Unknown("an index of booleans")
    front = functools.reduce(broadcast, map(e.sizes, given.values()), ())
    return e.ref(a["self"]), given, list(front)


@aten("index", "_unsafe_index")
def index(e: GraphBuilder, a: Args) -> Ref:
    """x[i, :, j]; an index that takes a dim as it is, is that dim."""
    x, given, front = _given(e, a)
    if len(given) == 1:
        ((dim, indices),) = given.items()
        found = e.from_start(indices, x.shape[dim])
        return e.op("gather", [x, found], *a["out"], axis=dim)
    whole: dict[int, int] = {}  # the dim of the indices -> that of x
    for d, i in given.items():
        place = e.steps_along(i, x.shape[d])
        if place is not None:
            whole.setdefault(place + len(front), d)
    own = sorted(whole)
    picked = [d for d in given if d not in whole.values()]
    rest = [d for d in range(x.ndim) if d not in given]
    sizes = [x.shape[d] for d in rest]
    rows = [x.shape[whole[p]] for p in own]
    turned = e.permuted(x, [*(whole[p] for p in own), *picked, *rest])
    others = [p for p in range(len(front)) if p not in whole]
    wide = [front[p] for p in others]
    if picked:
        places = e.expanded(_merged(e, x, picked, given), front)
        places = e.reshaped(e.permuted(places, [*own, *others]), [*rows, product(wide)])
        turned = e.reshaped(turned, [*rows, product([x.shape[d] for d in picked]), *sizes])
        shape = [*rows, product(wide), *sizes]
        attrs = {} if own else {"axis": 0}
        found = e.op("batch_gather" if own else "gather", [turned, places], shape, **attrs)
        found = e.reshaped(found, [*rows, *wide, *sizes])
    else:
        ones = e.reshaped(turned, [*rows, *(1 for _ in others), *sizes])
        found = e.expanded(ones, [*rows, *wide, *sizes])
    order = [*own, *others, *range(len(front), len(front) + len(rest))]
    found = e.permuted(found, [order.index(p) for p in range(len(order))])
    (first, *_), behind = given, len(front)
    if list(given) == list(range(first, first + len(given))):  # they stand where their dims stood
        moved = [*range(behind, behind + first), *range(behind), *range(behind + first, len(order))]
        found = e.permuted(found, moved)
    return e.reshaped(found, a["out"][0])


@aten("index_put", "_unsafe_index_put")
def index_put(e: GraphBuilder, a: Args) -> Ref:
    """x with values where indices say, or added there."""
    x, values = e.ref(a["self"]), e.ref(a["values"])
    (mask, *several) = a["indices"]
    if isinstance(mask, Ref) and mask.dtype == "bool" and not several and not a["accumulate"]:
        if product(values.shape) != 1:
            raise Unknown("several values where a mask says")
        mask = e.reshaped(mask, [*mask.shape, *(1,) * (x.ndim - mask.ndim)])
        return e.op("where", [mask, e.cast(e.reshaped(values, ()), x.dtype), x], x.shape, x.dtype)
    x, given, front = _given(e, a)
    rest = [d for d in range(x.ndim) if d not in given]
    order = [*given, *rest]
    sizes, count = [x.shape[d] for d in rest], product(front)
    turned = e.permuted(x, order)
    flat = e.reshaped(turned, [product([x.shape[d] for d in given]), *sizes])
    places = e.reshaped(e.expanded(_merged(e, x, list(given), given), front), [count])
    if list(given) != list(range(len(given))) and values.ndim > len(front):
        raise Unknown("values for an index of other dims than the first")
    values = e.reshaped(e.expanded(values, [*front, *sizes]), [count, *sizes])
    kind = "dim_scatter_add" if a["accumulate"] else "dim_scatter_update"
    found = e.op(kind, [flat, each_of(e, places, sizes), values], flat.shape, dim=0)
    found = e.reshaped(found, turned.shape)
    return e.permuted(found, [order.index(d) for d in range(x.ndim)])


@aten("histc")
def histc(e: GraphBuilder, a: Args) -> Ref:
    """How many of some whole numbers are 0, 1, ..., as routers count the tokens of an expert."""
    x, bins, most = e.ref(a["self"]), a["bins"], a["max"]
    made = next((op for op in reversed(e.ops) if x.name in op.outputs), None)
    whole = made is not None and made.kind == "cast" and not e.tensors[made.inputs[0]].spec.is_float
    if a["min"] != 0 or most not in (bins - 1, bins) or (x.is_float and not whole):
        raise Unknown("a histogram of other numbers than 0, 1, ... bins - 1")
    if most == bins:  # which the last bin has, too
        ends = e.op("scalar_logical_equal", [x], x.shape, "bool", operand=bins)
        x = e.op("where_scalar_x", [ends, x], x.shape, x.dtype, operand=bins - 1)
    rows = e.reshaped(x, (product(x.shape), 1))
    steps = {"integer_start": 0, "integer_limit": bins, "integer_delta": 1}
    numbers = e.cast(e.op("arange", [], (bins,), "int64", dtype="int64", **steps), x.dtype)
    hits = e.op("broadcast_equal", [rows, numbers], (rows.shape[0], bins), "bool")
    return e.sum(e.cast(hits, a["out"][1]), (0,))
