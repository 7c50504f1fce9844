"""Elementwise operators, with broadcasting."""

from __future__ import annotations

from typing import Any

from ..builder import GraphBuilder, Ref, Unknown, broadcast
from .table import Args, aten, renamed

_SAME_NAME = (
    "relu", "tanh", "sigmoid", "silu", "mish", "selu", "exp", "expm1", "log", "log1p", "log2",
    "log10", "sqrt", "rsqrt", "abs", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "round", "trunc",
    "sign", "logical_not", "isnan", "isinf", "isfinite", "lgamma", "hardswish", "hardsigmoid",
    "square",
)  # fmt: skip
_COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor", "bitwise_and": "logical_and", "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor", "__and__": "logical_and", "__or__": "logical_or",
    "__xor__": "logical_xor",
}  # fmt: skip


def is_tensor(x: Any) -> bool:
    return not isinstance(x, (int, float, complex, type(None)))


renamed({name: name for name in _SAME_NAME})
renamed({"neg": "negative", "bitwise_not": "logical_not", "log_sigmoid": "log_sigmoid"})


@aten("gelu")
def gelu(e: GraphBuilder, a: Args) -> Ref:
    return e.same("gelu" if a["approximate"] == "none" else "fast_gelu", a["self"])


@aten("glu")
def glu(e: GraphBuilder, a: Args) -> Ref:
    """One half of a dim, by the sigmoid of the other."""
    x, (shape, dtype) = e.ref(a["self"]), a["out"]
    half = x.shape[a["dim"]] // 2
    one, other = (e.narrowed(x, a["dim"], start, half) for start in (0, half))
    return e.op("broadcast_mul", [one, e.same("sigmoid", other)], shape, dtype)


# ATen's name -> our kind, and its attributes: of ATen's argument of that name, or a number
_WITH_NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "elu": ("elu", {"alpha": "alpha"}),
    "celu": ("celu", {"alpha": "alpha"}),
    "leaky_relu": ("leaky_relu", {"alpha": "negative_slope"}),
    "softplus": ("softplus", {"beta": "beta", "threshold": "threshold"}),
    "softshrink": ("softshrink", {"alpha": "lambd"}),
    "hardshrink": ("hardshrink", {"lambd": "lambd"}),
    "threshold": ("threshold", {"threshold_val": "threshold", "value": "value"}),
    "hardtanh": ("hardtanh", {"min_val": "min_val", "max_val": "max_val"}),
    "relu6": ("hardtanh", {"min_val": 0, "max_val": 6}),
}


@aten(*_WITH_NUMBERS)
def with_numbers(e: GraphBuilder, a: Args) -> Ref:
    kind, attrs = _WITH_NUMBERS[a["name"]]
    if a.get("scale", 1) != 1 or a.get("input_scale", 1) != 1:
        raise Unknown(f"{a['name']} with another scale than 1")
    given = {k: float(a[v] if isinstance(v, str) else v) for k, v in attrs.items()}
    return e.same(kind, a["self"], **given)


@aten("clamp", "clamp_min", "clamp_max", "clip")
def clamp(e: GraphBuilder, a: Args) -> Ref:
    low, high = a.get("min"), a.get("max")
    if is_tensor(low) or is_tensor(high):
        x = e.ref(a["self"])
        for bound, kind in ((low, "greater_equal"), (high, "less_equal")):
            if bound is not None:  # at the bound x gets the gradient
                inside = e.op(f"broadcast_{kind}", [x, bound], a["out"][0], "bool")
                x = e.op("where", [inside, x, bound], *a["out"])
        return x
    prefix = "floating" if e.ref(a["self"]).is_float else "integral"
    given = {"min": low, "max": high}
    attrs = {f"{prefix}_{key}": value for key, value in given.items() if value is not None}
    kind = "clip_by_scalar" if len(attrs) == 2 else f"clip_by_scalar_{list(attrs)[0][-3:]}"
    return e.same(kind, a["self"], **attrs)


def _two(e: GraphBuilder, kind: str, x: Any, y: Any, out: tuple[Any, str]) -> Ref:
    return e.op(kind, [x, y], *out)


def _scalar(e: GraphBuilder, kind: str, a: Args, operand: Any) -> Ref:
    shape, dtype = a["out"]
    return e.op(kind, [a["self"]], shape, dtype, operand=operand)


@aten("add", "sub")
def add(e: GraphBuilder, a: Args) -> Ref:
    """self ± alpha other."""
    sign = -1 if a["name"] == "sub" else 1
    x, y, alpha = a["self"], a["other"], a["alpha"]
    if not is_tensor(y):
        return _shifted(e, x, _times(y, sign * alpha), a["out"])
    if alpha != 1:
        y = e.same("scalar_mul", y, operand=alpha)
    if not is_tensor(x):
        y = e.same("scalar_mul", y, operand=-1) if sign < 0 else y
        return e.cast(_shifted(e, y, x, (a["out"][0], e.ref(y).dtype)), a["out"][1])
    if sign < 0:
        return _two(e, "broadcast_sub", x, y, a["out"])
    x, y = e.ref(x), e.ref(y)
    alike = tuple(x.shape) == tuple(y.shape) and x.dtype == y.dtype
    return _two(e, "add_n" if alike else "broadcast_add", x, y, a["out"])


def _shifted(e: GraphBuilder, x: Any, number: Any, out: tuple[Any, str]) -> Ref:
    """x + number; as a tensor where x may be a mean over the batch, of which parts have a share."""
    is_plain = isinstance(number, float | int) and not getattr(number, "exponent", 0)
    if number and is_plain and not out[0] and e.ref(x).is_float:
        return _two(e, "broadcast_add", x, e.filled((), float(number), out[1]), out)
    return e.op("scalar_add", [x], *out, operand=number)


def _times(number: Any, factor: float) -> Any:
    """A number times ±1, which keeps how it follows the batch; times another if it is plain."""
    if factor == 1:
        return number
    if getattr(number, "exponent", 0):
        raise Unknown("a multiple of a size, as a number")
    return number * factor


@aten("rsub")
def rsub(e: GraphBuilder, a: Args) -> Ref:
    """other - alpha self."""
    if not is_tensor(a["other"]):
        return _shifted(e, _scalar(e, "scalar_mul", a, -a["alpha"]), a["other"], a["out"])
    x = a["self"] if a["alpha"] == 1 else e.same("scalar_mul", a["self"], operand=a["alpha"])
    return _two(e, "broadcast_sub", a["other"], x, a["out"])


@aten("mul", "multiply")
def mul(e: GraphBuilder, a: Args) -> Ref:
    if not is_tensor(a["other"]):
        return _scalar(e, "scalar_mul", a, a["other"])
    return _two(e, "broadcast_mul", a["self"], a["other"], a["out"])


@aten("div", "true_divide")
def div(e: GraphBuilder, a: Args) -> Ref:
    rounding = a.get("rounding_mode")
    if rounding == "floor":
        return floor_divide(e, a)
    if rounding and not a["out"][1].startswith("float"):
        raise Unknown(f"division of whole numbers with rounding_mode={rounding!r}")
    if rounding:
        return e.same("trunc", div(e, {**a, "rounding_mode": None}))
    if not is_tensor(a["other"]):
        return _scalar(e, "scalar_div", a, a["other"])
    return _two(e, "broadcast_div", a["self"], a["other"], a["out"])


@aten("floor_divide")
def floor_divide(e: GraphBuilder, a: Args) -> Ref:
    if not is_tensor(a["other"]):
        return _scalar(e, "scalar_floordiv", a, a["other"])
    return _two(e, "floordiv", e.expanded(a["self"], a["out"][0]), a["other"], a["out"])


@aten("fmod")
def fmod(e: GraphBuilder, a: Args) -> Ref:
    if not is_tensor(a["other"]):
        return _scalar(e, "scalar_fmod", a, a["other"])
    return _two(e, "broadcast_fmod", a["self"], a["other"], a["out"])


@aten("remainder")
def remainder(e: GraphBuilder, a: Args) -> Ref:
    """x - floor(x / y) y, which has y's sign."""
    times = mul(e, {**a, "self": floor_divide(e, a)})
    return _two(e, "broadcast_sub", a["self"], times, a["out"])


@aten("pow")
def power(e: GraphBuilder, a: Args) -> Ref:
    if not is_tensor(a["exponent"]):
        if a["exponent"] == 2 and e.ref(a["self"]).is_float:
            return e.same("square", a["self"])
        return _scalar(e, "scalar_pow", a, a["exponent"])
    if not is_tensor(a["self"]):
        shape, dtype = a["out"]
        return e.op("scalar_reverse_pow", [a["exponent"]], shape, dtype, operand=a["self"])
    return _two(e, "broadcast_pow", a["self"], a["exponent"], a["out"])


@aten("exp2")
def exp2(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    return e.op("scalar_reverse_pow", [a["self"]], shape, dtype, operand=2)


@aten("isposinf", "isneginf")
def is_infinite(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    limit = float("inf") if a["name"] == "isposinf" else float("-inf")
    return e.op("scalar_logical_equal", [a["self"]], shape, dtype, operand=limit)


@aten("xlogy")
def xlogy(e: GraphBuilder, a: Args) -> Ref:
    """self log other, and 0 where self is, whatever the other is."""
    if not (is_tensor(a["self"]) and is_tensor(a["other"])):
        raise Unknown("xlogy of a number")
    x, y, shape = e.ref(a["self"]), e.ref(a["other"]), a["out"][0]
    none = e.op("scalar_logical_equal", [x], x.shape, "bool", operand=0)
    unknown = e.op("scalar_logical_less_equal", [y], y.shape, "bool", operand=0)
    neither = e.op("broadcast_logical_and", [none, unknown], shape, "bool")
    logs = e.same("log", e.op("masked_fill", [e.expanded(y, shape), neither], shape, operand=1.0))
    return _two(e, "broadcast_mul", x, logs, a["out"])


@aten("maximum", "minimum")
def extremum(e: GraphBuilder, a: Args) -> Ref:
    return _two(e, f"broadcast_{a['name']}", a["self"], a["other"], a["out"])


@aten("atan2")
def atan2(e: GraphBuilder, a: Args) -> Ref:
    return _two(e, "atan2", a["self"], a["other"], a["out"])


@aten(*_COMPARISONS)
def compare(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    if a["name"].startswith(("bitwise", "__")) and dtype != "bool":
        raise Unknown("arithmetic of single bits")
    kind = _COMPARISONS[a["name"]]
    if not is_tensor(a["other"]):
        return e.op(f"scalar_logical_{kind}".replace("logical_logical", "logical"), [a["self"]],
                    shape, dtype, operand=a["other"])  # fmt: skip
    return e.op(f"broadcast_{kind}", [a["self"], a["other"]], shape, dtype)


@aten("where")
def where(e: GraphBuilder, a: Args) -> Ref:
    shape, dtype = a["out"]
    x, y = a["self"], a["other"]
    if not is_tensor(x) and not is_tensor(y):
        x = e.filled((), x, dtype)
    if not is_tensor(x):
        return e.op("where_scalar_x", [a["condition"], y], shape, dtype, operand=x)
    if not is_tensor(y):
        return e.op("where_scalar_y", [a["condition"], x], shape, dtype, operand=y)
    return e.op("where", [a["condition"], x, y], shape, dtype)


@aten("masked_fill")
def masked_fill(e: GraphBuilder, a: Args) -> Ref:
    value = a["value"]
    if hasattr(value, "item"):  # a known tensor
        value = value.item()
    if isinstance(value, Ref):
        return e.op("where", [a["mask"], value, a["self"]], *a["out"])
    return e.op("masked_fill", [a["self"], a["mask"]], *a["out"], operand=value)


@aten("prelu")
def prelu(e: GraphBuilder, a: Args) -> Ref:
    return _two(e, "prelu", a["self"], a["weight"], a["out"])


@aten("_to_copy", "to", "type_as")
def cast(e: GraphBuilder, a: Args) -> Ref:
    return e.cast(a["self"], a["out"][1])


@aten("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "lift", "positive")
def same(e: GraphBuilder, a: Args) -> Any:
    return a["self"]


@aten("detach", "detach_copy")
def detach(e: GraphBuilder, a: Args) -> Any:
    x = a["self"]
    return e.same("stop_gradient", x) if isinstance(x, Ref) and x.is_float else x


@aten("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "zeros", "ones",
      "full", "empty", "empty_like", "new_empty", "scalar_tensor", "zero", "fill")  # fmt: skip
def full(e: GraphBuilder, a: Args) -> Any:
    """What is not known of an empty tensor is never read, so zeros do."""
    shape, dtype = a["out"]
    value = a.get("fill_value", a.get("value", a.get("s", 1 if "ones" in a["name"] else 0)))
    if hasattr(value, "item"):  # a known tensor
        value = value.item()
    if not isinstance(value, (int, float)):
        return e.expanded(e.cast(value, dtype), shape)
    return e.filled(shape, value, dtype)


@aten("copy")
def copy(e: GraphBuilder, a: Args) -> Ref:
    return e.expanded(e.cast(a["src"], a["out"][1]), a["out"][0])


@aten("lerp.Tensor")
def lerp(e: GraphBuilder, a: Args) -> Ref:
    """From start on towards end, by shares of their own."""
    start, (shape, dtype) = e.ref(a["self"]), a["out"]
    way = e.op("broadcast_sub", [a["end"], start], broadcast(e.ref(a["end"]).shape, start.shape))
    part = e.op("broadcast_mul", [way, a["weight"]], shape, dtype)
    return e.op("broadcast_add", [start, part], shape, dtype)
