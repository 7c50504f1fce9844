"""What is drawn. A plan's numbers follow from its seed: they are not those of torch's generator."""

from __future__ import annotations

from typing import Any

from ..builder import GraphBuilder, Ref, Unknown
from .table import Args, aten


def _draws(e: GraphBuilder, kind: str, a: Args, **attrs: Any) -> Ref:
    if a.get("generator") is not None:
        raise Unknown("draws of a generator of one's own")
    shape, dtype = a["out"]
    key = "out_shape" if kind == "exponential" else "shape"
    return e.op(kind, [], shape, dtype, dtype=dtype, **{key: tuple(shape)}, **attrs)


@aten("rand", "rand_like", "uniform")
def uniform(e: GraphBuilder, a: Args) -> Ref:
    return _draws(e, "uniform", a, **{"from": float(a.get("from", 0)), "to": float(a.get("to", 1))})


@aten("randn", "randn_like", "normal_functional", "normal.float_float")
def normal(e: GraphBuilder, a: Args) -> Ref:
    return _draws(e, "normal", a, mean=float(a.get("mean", 0)), std=float(a.get("std", 1)))


@aten("exponential")
def exponential(e: GraphBuilder, a: Args) -> Ref:
    return _draws(e, "exponential", a, lambd=float(a["lambd"]))


@aten("randint", "randint_like")
def integers(e: GraphBuilder, a: Args) -> Ref:
    return _draws(e, "uniform_int", a, **{"from": int(a.get("low") or 0), "to": int(a["high"])})


@aten("bernoulli.default")
def bernoulli(e: GraphBuilder, a: Args) -> Ref:
    if a["generator"] is not None:
        raise Unknown("draws of a generator of one's own")
    x = e.ref(a["self"])
    return e.op("bernoulli", [x], x.shape, x.dtype, p=-1.0, dtype=x.dtype)


@aten("native_dropout", "dropout")
def dropout(e: GraphBuilder, a: Args) -> Any:
    x, rate = e.ref(a.get("input", a.get("self"))), a["p"]
    trained = a.get("train", True)
    y = e.same("dropout", x, rate=float(rate)) if trained and rate else x
    return y if a["name"] == "dropout" else (y, None)


@aten("feature_dropout")
def feature_dropout(e: GraphBuilder, a: Args) -> Ref:
    """Drops whole channels."""
    x = e.ref(a["input"])
    if not a["train"] or not a["p"]:
        return x
    ones = e.filled((*x.shape[:2], *(1,) * (x.ndim - 2)), 1.0, x.dtype)
    return e.op("broadcast_mul", [x, e.same("dropout", ones, rate=float(a["p"]))], x.shape)
