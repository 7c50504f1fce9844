"""Lookups by index, of indices that are tensors of the graph."""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import GraphBuilder, Ref, Unknown
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
