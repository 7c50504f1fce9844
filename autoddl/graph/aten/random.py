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


@aten("bernoulli.default", "bernoulli.p", "bernoulli.float", "bernoulli.Tensor")
def bernoulli(e: GraphBuilder, a: Args) -> Ref:
    """Ones of the probabilities in a tensor, which may be the first, or all of one."""
    if a["generator"] is not None:
        raise Unknown("draws of a generator of one's own")
    shape, dtype = a["out"]
    p = a.get("p", a["self"])
    if isinstance(p, float):
        ones = e.filled(shape, 1.0, dtype)
        return e.op("bernoulli", [ones], shape, dtype, p=p, dtype=dtype)
    return e.op("bernoulli", [e.expanded(p, shape)], shape, dtype, p=-1.0, dtype=dtype)


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


# of SELU, whose mean and variance alpha dropout keeps
_ALPHA = 1.7580993408473766


@aten("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(e: GraphBuilder, a: Args) -> Ref:
    """What is dropped becomes -alpha, or whole channels do; then all is scaled and shifted."""
    x, rate = e.ref(a["input"]), float(a["p"])
    if not a["train"] or not rate:
        return x
    if rate == 1:
        return e.same("scalar_mul", x, operand=0.0)
    shape = x.shape if a["name"] == "alpha_dropout" else (*x.shape[:2], *(1,) * (x.ndim - 2))
    ones = e.filled(shape, 1.0, x.dtype)
    kept = e.op("bernoulli", [ones], shape, x.dtype, p=1 - rate, dtype=x.dtype)
    scale = ((_ALPHA**2 * rate + 1) * (1 - rate)) ** -0.5
    dropped = e.same("scalar_add", e.same("scalar_mul", kept, operand=_ALPHA), operand=-_ALPHA)
    found = e.op("broadcast_mul", [x, kept], x.shape)
    found = e.op("broadcast_add", [found, dropped], x.shape)
    found = e.same("scalar_mul", found, operand=scale)
    found = e.same("scalar_add", found, operand=scale * _ALPHA * rate)
    return e.op("by_mode", [found, x], x.shape)


@aten("rrelu")
def rrelu(e: GraphBuilder, a: Args) -> Ref:
    """Its slope below zero is drawn for each element; in evaluation it is the mean."""
    x, low, high = e.ref(a["self"]), float(a["lower"]), float(a["upper"])
    mean = e.same("leaky_relu", x, alpha=(low + high) / 2)
    if not a["training"]:
        return mean
    drawn = _draws(e, "uniform", a, **{"from": low, "to": high})
    below = e.op("scalar_logical_less", [x], x.shape, "bool", operand=0)
    sloped = e.op("where", [below, e.op("broadcast_mul", [x, drawn], x.shape), x], x.shape, x.dtype)
    return e.op("by_mode", [sloped, mean], x.shape)


@aten("multinomial")
def multinomial(e: GraphBuilder, a: Args) -> Ref:
    """The largest of probabilities, each divided by a draw of an exponential law: as in torch."""
    x, (shape, dtype) = e.ref(a["self"]), a["out"]
    if a["replacement"] and a["num_samples"] > 1:
        raise Unknown("several draws with replacement")
    drawn = _draws(e, "exponential", {**a, "out": (x.shape, x.dtype)}, lambd=1.0)
    keys = e.op("broadcast_div", [x, drawn], x.shape)
    return e.op("top_k", [keys], shape, dtype, k=a["num_samples"], sorted=True)


@aten("normal.Tensor_float", "normal.Tensor_Tensor", "normal.float_Tensor")
def normal_around(e: GraphBuilder, a: Args) -> Ref:
    """Of means or deviations of their own. It has no gradient."""
    shape, dtype = a["out"]
    found = _draws(e, "normal", a, mean=0.0, std=1.0)
    for kind, key in (("mul", "std"), ("add", "mean")):
        if isinstance(a[key], (int, float)):
            found = e.same(f"scalar_{kind}", found, operand=float(a[key]))
        else:
            own = e.op("stop_gradient", [a[key]], e.ref(a[key]).shape)
            found = e.op(f"broadcast_{kind}", [found, own], shape, dtype)
    return found
