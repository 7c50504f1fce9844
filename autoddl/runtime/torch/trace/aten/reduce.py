"""Reductions, orders and running sums."""

from __future__ import annotations

from typing import Any

from ..emit import Emitter, Ref, Unknown, left
from .table import Args, aten


def _dims(a: Args, key: str = "dim") -> tuple[int, ...]:
    value = a.get(key)
    return () if value is None else tuple(value) if isinstance(value, (tuple, list)) else (value,)


@aten("sum")
def sum_(e: Emitter, a: Args) -> Ref:
    x = e.ref(a["self"])
    if not x.ndim:
        return x
    return e.sum(e.cast(x, a["out"][1]), _dims(a), bool(a.get("keepdim")))


@aten("mean")
def mean(e: Emitter, a: Args) -> Ref:
    x = e.ref(a["self"])
    if not x.ndim:
        return x
    return e.mean(e.cast(x, a["out"][1]), _dims(a), bool(a.get("keepdim")))


@aten("amax", "amin", "all", "any", "prod")
def extremum(e: Emitter, a: Args) -> Ref:
    x, keep = e.ref(a["self"]), bool(a.get("keepdim"))
    dims = tuple(d % x.ndim for d in _dims(a)) or tuple(range(x.ndim))
    kind = {"amax": "max", "amin": "min"}.get(a["name"], a["name"])
    shape = left(x.shape, dims, keep)
    return e.op(f"reduce_{kind}", [x], shape, a["out"][1], axis=dims, keepdims=keep)


@aten("var", "std")
def var(e: Emitter, a: Args) -> Ref:
    x, keep = e.ref(a["self"]), bool(a.get("keepdim"))
    correction = a["correction"] if "correction" in a else int(a.get("unbiased", True))
    correction = 1 if correction is None else correction
    if correction not in (0, 1):
        raise Unknown(f"a variance with correction={correction}")
    dims = tuple(sorted(d % x.ndim for d in _dims(a))) or tuple(range(x.ndim))
    found = e.op(
        "var", [x], left(x.shape, dims, keep), dim=dims, keepdim=keep, unbiased=bool(correction)
    )
    return e.same("sqrt", found) if a["name"] == "std" else found


@aten("softmax", "_softmax", "log_softmax", "_log_softmax")
def softmax(e: Emitter, a: Args) -> Ref:
    """Over one dim, which is brought to the end."""
    x = e.cast(a["self"], a["out"][1])
    kind = a["name"].lstrip("_")
    if a["dim"] % x.ndim == x.ndim - 1:
        return e.same(kind, x)
    return e.swapped(e.same(kind, e.swapped(x, a["dim"], -1)), a["dim"], -1)


@aten("cumsum")
def cumsum(e: Emitter, a: Args) -> Ref:
    return e.same("cumsum", e.cast(a["self"], a["out"][1]), dim=a["dim"])


@aten("argmax")
def argmax(e: Emitter, a: Args) -> Ref:
    x = e.ref(a["self"])
    if a["dim"] is None:
        raise Unknown("argmax of a whole tensor")
    x = e.swapped(x, a["dim"], -1)
    found = e.op("argmax", [x], x.shape[:-1], "int64")
    shape = (*found.shape, 1)
    return e.swapped(e.reshaped(found, shape), a["dim"], -1) if a["keepdim"] else found


@aten("topk")
def topk(e: Emitter, a: Args) -> tuple[Ref, Ref]:
    """The k largest of the last dim, and where they are."""
    x = e.ref(a["self"])
    if a["dim"] % x.ndim != x.ndim - 1 or not a["largest"]:
        raise Unknown("topk of another dim than the last, or of the smallest")
    shape = (*x.shape[:-1], a["k"])
    places = e.op("top_k", [x], shape, "int64", k=a["k"], sorted=a["sorted"])
    return e.op("dim_gather", [x, places], shape, dim=x.ndim - 1), places


@aten("sort")
def sort(e: Emitter, a: Args) -> tuple[Ref, Ref]:
    x = e.ref(a["self"])
    if a["dim"] % x.ndim != x.ndim - 1:
        raise Unknown("sort of another dim than the last")
    direction = "DESCENDING" if a["descending"] else "ASCENDING"
    places = e.op("arg_sort", [x], x.shape, "int64", direction=direction)
    return e.op("dim_gather", [x, places], x.shape, dim=x.ndim - 1), places


@aten("max.dim", "min.dim")
def max_of_dim(e: Emitter, a: Args) -> tuple[Ref, Any]:
    """The largest along a dim; where it is comes by itself, if that is read."""
    x, keep, dim = e.ref(a["self"]), a["keepdim"], a["dim"] % e.ref(a["self"]).ndim
    kind = a["name"].partition(".")[0]
    values = e.op(f"reduce_{kind}", [x], left(x.shape, (dim,), keep), axis=(dim,), keepdims=keep)
    return values, None


@aten("max", "min")
def max_of_all(e: Emitter, a: Args) -> Ref:
    if "other" in a:
        kind = {"max": "maximum", "min": "minimum"}[a["name"]]
        return e.op(f"broadcast_{kind}", [a["self"], a["other"]], *a["out"])
    x = e.ref(a["self"])
    dims = tuple(range(x.ndim))
    return e.op(f"reduce_{a['name']}", [x], (), axis=dims, keepdims=False)
