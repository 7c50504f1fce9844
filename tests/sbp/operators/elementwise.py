"""Elementwise operators, of any number of inputs."""

from typing import Any

import autograd.numpy as np
from autograd.scipy.special import erf, erfc, gammaln

from autoddl.sbp.rules.elementwise import COMPARISONS, OF_TWO, nonlinear
from autoddl.sbp.signature import RULES

from .case import Case, case, f, flags, index, out, positive, unit
from .random import hashed
from .reference import op, table

UNARY_ATTRS: dict[str, dict[str, Any]] = {
    "elu": {"alpha": 1.0}, "celu": {"alpha": 0.5}, "leaky_relu": {"alpha": 0.01},
    "softplus": {"beta": 1.0, "threshold": 20.0}, "softshrink": {"alpha": 0.5},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0},
    "threshold": {"threshold_val": 0.1, "value": 20.0},
    "scalar_add": {"operand": 1.5}, "scalar_pow": {"operand": 2}, "scalar_fmod": {"operand": 2},
    "scalar_reverse_pow": {"operand": 2}, "scalar_floordiv": {"operand": 2},
    "clip_by_scalar": {"floating_min": -0.5, "floating_max": 0.5, "integral_min": 0,
                       "integral_max": 0},
    "clip_by_scalar_min": {"floating_min": -0.5, "integral_min": 0},
    "clip_by_scalar_max": {"floating_max": 0.5, "integral_max": 0},
    "dropout": {"rate": 0.5}, "hardshrink": {"lambd": 0.5},
    "scalar_mul": {"operand": 0.125}, "scalar_div": {"operand": 8.0},
    **{f"scalar_logical_{how}": {"operand": 0} for how in (
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
        "and", "or", "xor")},
    "broadcast_isclose_neq_nan": {"atol": 0.5, "rtol": 0.1, "equal_nan": False},
    "broadcast_isclose_eq_nan": {"atol": 0.5, "rtol": 0.1, "equal_nan": True},
}  # fmt: skip
ABOVE_ONE = {"log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "reciprocal_no_nan", "acosh",
             "log10", "lgamma"}  # fmt: skip
IN_UNIT = {"asin", "acos", "atanh"}
TRUTHS = (
    "scalar_logical_", "logical_", "isnan", "isinf", "isfinite", "broadcast_logical_",
    "broadcast_equal", "broadcast_not_equal", "broadcast_less", "broadcast_greater",
    "broadcast_isclose_",
)  # fmt: skip


def unary_case(kind: str) -> Case:
    arg = (positive if kind in ABOVE_ONE else unit if kind in IN_UNIT else f)(4, 6, 12)
    dtype = "bool" if kind.startswith(TRUTHS) else "float32"
    return case("", kind, (arg,), out(4, 6, 12, dtype=dtype), **UNARY_ATTRS.get(kind, {}))


def binary_case(kind: str) -> Case:
    dtype = "bool" if kind.startswith(TRUTHS) else "float32"
    args = (positive(4, 6), positive(4, 6))
    return case("", kind, args, out(4, 6, dtype=dtype), **UNARY_ATTRS.get(kind, {}))


BINARY_KINDS = (*OF_TWO, *COMPARISONS)
UNARY_KINDS = [
    kind for kind, rule in RULES.items()
    if rule.signatures is nonlinear and kind not in (*BINARY_KINDS, "where_scalar_xy")
]  # fmt: skip
CASES = (
    *map(unary_case, (*UNARY_KINDS, "negative", "scalar_add", "scalar_mul", "scalar_div")),
    case("zero", "scalar_add", (f(4, 6, 8),), out(4, 6, 8), operand=0),
    *map(binary_case, BINARY_KINDS),
    case("", "identity", (f(4, 6),), out(4, 6)),
    case("counter", "scalar_add", (index(9),), out(dtype="int64"), operand=1),
    case("to_float", "cast", (index(9, 4, 6),), out(4, 6), dtype="float32", pin_memory=False),
    case("to_int", "cast", (f(4, 6),), out(4, 6, dtype="int64"), dtype="int64", pin_memory=False),
    case("to_double", "cast", (f(4, 6),), out(4, 6, dtype="float64"), dtype="float64",
         pin_memory=False),
    case("bias", "broadcast_add", (f(4, 6, 8), f(8)), out(4, 6, 8)),
    case("middle", "broadcast_add", (f(4, 6, 8), f(6, 1)), out(4, 6, 8)),
    case("lead", "broadcast_add", (f(4, 6, 8), f(1, 6, 8)), out(4, 6, 8)),
    case("scalar", "broadcast_add", (f(4, 6), f()), out(4, 6)),
    case("ints", "broadcast_add", (index(9, 4, 6), index(9, 6)), out(4, 6, dtype="int64")),
    case("both", "broadcast_sub", (f(4, 1, 8), f(6, 1)), out(4, 6, 8)),
    case("statistics", "broadcast_sub", (f(4, 6, 8), f(4, 6, 1)), out(4, 6, 8)),
    case("", "broadcast_mul", (f(4, 6), f(4, 6)), out(4, 6)),
    case("scale", "broadcast_mul", (f(4, 6, 8), f(8)), out(4, 6, 8)),
    case("one", "broadcast_mul", (f(4, 6), f(1)), out(4, 6)),
    case("", "broadcast_div", (f(4, 6), positive(4, 6)), out(4, 6)),
    case("statistics", "broadcast_div", (f(4, 6, 8), positive(4, 1, 8)), out(4, 6, 8)),
    case("loss", "broadcast_div", (f(), positive()), out()),
    case("bias", "broadcast_maximum", (f(4, 6), f(6)), out(4, 6)),
    case("", "add_n", (f(4, 6), f(4, 6)), out(4, 6)),
    case("three", "add_n", (f(4, 6, 8), f(4, 6, 8), f(4, 6, 8)), out(4, 6, 8)),
    case("channels", "bias_add", (f(4, 6, 3, 2), f(6)), out(4, 6, 3, 2), axis=1),
    case("last", "bias_add", (f(4, 6), f(6)), out(4, 6), axis=1),
    case("one", "prelu", (f(4, 6, 3), f(1)), out(4, 6, 3)),
    case("channels", "prelu", (f(4, 6, 3), f(6)), out(4, 6, 3)),
    case("", "masked_fill", (f(4, 6, 8), flags(4, 6, 8)), out(4, 6, 8), operand=-1e4),
    case("zero", "masked_fill", (f(4, 6, 8), flags(4, 6, 8)), out(4, 6, 8), operand=0),
    case("", "where", (flags(4, 6), f(4, 6), f(4, 6)), out(4, 6)),
    case("stretched", "where", (flags(4, 6), f(4, 1), f(6)), out(4, 6)),
    case("", "where_scalar_y", (flags(4, 6), f(4, 6)), out(4, 6), operand=1.5),
    case("zero", "where_scalar_y", (flags(4, 6), f(4, 6)), out(4, 6), operand=0.0),
    case("", "where_scalar_xy", (flags(4, 6),), out(4, 6), x_float_operand=1.5,
         y_float_operand=0.5, has_x_float_operand=True, has_y_float_operand=True,
         **{f"has_{side}_{t}_operand": False for side in "xy" for t in ("int", "bool")}),
    case("", "where_scalar_x", (flags(4, 6), f(4, 6)), out(4, 6), operand=1.5),
)  # fmt: skip


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def _elu(x, alpha):
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


SQRT2, SELU_SCALE, SELU_ALPHA = 2**0.5, 1.0507009873554805, 1.6732632423543772

UNARY = {
    "identity": lambda x, a: 1 * x,
    "fork": lambda x, a: 1 * x,
    "cast": lambda x, a: x.astype(a["dtype"]) if "int" in a["dtype"] else 1.0 * x,
    "relu": lambda x, a: np.maximum(x, 0),
    "gelu": lambda x, a: 0.5 * x * (1 + erf(x / SQRT2)),
    "fast_gelu": lambda x, a: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x, a: x * sigmoid(1.702 * x),
    "sigmoid": lambda x, a: sigmoid(x),
    "silu": lambda x, a: x * sigmoid(x),
    "mish": lambda x, a: x * np.tanh(softplus(x)),
    "selu": lambda x, a: SELU_SCALE * _elu(x, SELU_ALPHA),
    "elu": lambda x, a: _elu(x, a["alpha"]),
    "celu": lambda x, a: np.where(x > 0, x, a["alpha"] * np.expm1(np.minimum(x / a["alpha"], 0))),
    "leaky_relu": lambda x, a: np.where(x > 0, x, a["alpha"] * x),
    "softplus": lambda x, a: softplus(a["beta"] * x) / a["beta"],
    "softsign": lambda x, a: x / (1 + np.abs(x)),
    "softshrink": lambda x, a: np.where(np.abs(x) > a["alpha"], x - a["alpha"] * np.sign(x), 0 * x),
    "log_sigmoid": lambda x, a: -softplus(-x),
    "hardshrink": lambda x, a: np.where(np.abs(x) > a["lambd"], x, 0 * x),
    "log10": lambda x, a: np.log10(x),
    "lgamma": lambda x, a: gammaln(x),
    "hardswish": lambda x, a: x * np.clip(x / 6 + 0.5, 0, 1),
    "hardsigmoid": lambda x, a: np.clip(x / 6 + 0.5, 0, 1),
    "hardtanh": lambda x, a: np.clip(x, a["min_val"], a["max_val"]),
    "threshold": lambda x, a: np.where(x > a["threshold_val"], x, a["value"] + 0 * x),
    "rsqrt": lambda x, a: 1 / np.sqrt(x),
    "reciprocal": lambda x, a: 1 / x,
    "reciprocal_no_nan": lambda x, a: 1 / x,
    "erf": lambda x, a: erf(x),
    "erfc": lambda x, a: erfc(x),
    "scalar_add": lambda x, a: x + a["operand"],
    "scalar_mul": lambda x, a: x * a["operand"],
    "scalar_div": lambda x, a: x / a["operand"],
    "scalar_pow": lambda x, a: x ** a["operand"],
    "scalar_reverse_pow": lambda x, a: a["operand"] ** x,
    "scalar_fmod": lambda x, a: x - np.trunc(x / a["operand"]) * a["operand"],
    "scalar_floordiv": lambda x, a: np.floor(x / a["operand"]) + 0 * x,
    "clip_by_scalar": lambda x, a: np.clip(x, a["floating_min"], a["floating_max"]),
    "clip_by_scalar_min": lambda x, a: np.maximum(x, a["floating_min"]),
    "clip_by_scalar_max": lambda x, a: np.minimum(x, a["floating_max"]),
    "logical_not": lambda x, a: np.logical_not(x),
    "scalar_logical_and": lambda x, a: np.logical_and(x, a["operand"]),
    "scalar_logical_or": lambda x, a: np.logical_or(x, a["operand"]),
    "scalar_logical_xor": lambda x, a: np.logical_xor(x, a["operand"]),
    "where_scalar_xy": lambda c, a: np.where(c, a["x_float_operand"], a["y_float_operand"]),
    "scalar_logical_equal": lambda x, a: x == a["operand"],
    "scalar_logical_not_equal": lambda x, a: x != a["operand"],
    "scalar_logical_less": lambda x, a: x < a["operand"],
    "scalar_logical_less_equal": lambda x, a: x <= a["operand"],
    "scalar_logical_greater": lambda x, a: x > a["operand"],
    "scalar_logical_greater_equal": lambda x, a: x >= a["operand"],
}  # fmt: skip
SAME = (
    "tanh", "exp", "expm1", "log", "log1p", "log2", "sqrt", "square", "abs", "negative", "sin",
    "cos", "tan", "sinh", "cosh", "isnan", "isinf", "isfinite",
)  # fmt: skip
ARCS = {n: n.replace("a", "arc", 1) for n in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
PIECEWISE_CONSTANT = ("floor", "ceil", "round", "rint", "trunc", "sign")


def plain(name):
    return lambda x, a: getattr(np, name)(x)


def without_slope(name):
    """The term with 0 gives autograd the zero gradient that it does not know of."""
    return lambda x, a: getattr(np, name)(x) + 0 * x


UNARY |= {name: plain(name) for name in SAME}
UNARY |= {name: plain(source) for name, source in ARCS.items()}
UNARY |= {name: without_slope(name) for name in PIECEWISE_CONSTANT}

BINARY = {
    "broadcast_sub": lambda x, y, a: x - y,
    "broadcast_mul": lambda x, y, a: x * y,
    "broadcast_div": lambda x, y, a: x / y,
    "broadcast_maximum": lambda x, y, a: np.maximum(x, y),
    "broadcast_minimum": lambda x, y, a: np.minimum(x, y),
    "elementwise_maximum": lambda x, y, a: np.maximum(x, y),
    "elementwise_minimum": lambda x, y, a: np.minimum(x, y),
    "broadcast_pow": lambda x, y, a: x**y,
    "pow": lambda x, y, a: x**y,
    "broadcast_fmod": lambda x, y, a: x - np.trunc(x / y) * y,
    "floordiv": lambda x, y, a: np.floor(x / y) + 0 * x,
    "atan2": lambda x, y, a: np.arctan2(x, y),
    "xdivy": lambda x, y, a: x / y,
    "broadcast_isclose_neq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"]),
    "broadcast_isclose_eq_nan": lambda x, y, a: np.isclose(x, y, a["rtol"], a["atol"], True),
    "broadcast_equal": lambda x, y, a: x == y,
    "broadcast_not_equal": lambda x, y, a: x != y,
    "broadcast_less": lambda x, y, a: x < y,
    "broadcast_less_equal": lambda x, y, a: x <= y,
    "broadcast_greater": lambda x, y, a: x > y,
    "broadcast_greater_equal": lambda x, y, a: x >= y,
    "broadcast_logical_and": lambda x, y, a: np.logical_and(x, y),
    "broadcast_logical_or": lambda x, y, a: np.logical_or(x, y),
    "broadcast_logical_xor": lambda x, y, a: np.logical_xor(x, y),
    "masked_fill": lambda x, mask, a: np.where(mask, a["operand"] + 0 * x, x),
    "where_scalar_y": lambda c, x, a: np.where(c, x, a["operand"] + 0 * x),
    "where_scalar_x": lambda c, x, a: np.where(c, a["operand"] + 0 * x, x),
    "where": lambda c, x, y, a: c * x + (1 - c) * y,
}

table(UNARY | BINARY)


@op("add_n", "broadcast_add")
def _add(inputs, attrs, shard):
    return (sum(inputs[1:], inputs[0]),)


@op("bias_add")
def _bias_add(inputs, attrs, shard):
    a, b = inputs
    return (a + b.reshape([-1 if d == attrs["axis"] else 1 for d in range(a.ndim)]),)


@op("prelu")
def _prelu(inputs, attrs, shard):
    x, alpha = inputs
    alpha = alpha.reshape([-1 if d == 1 else 1 for d in range(x.ndim)])
    return (np.where(x > 0, x, alpha * x),)


@op("dropout")
def _dropout(inputs, attrs, shard):
    """A mask of the global position, so that every shard sees its part of one mask."""
    (x,) = inputs
    keep = hashed(shard.in_starts[0], x.shape, shard.op.inputs[0].shape) >= attrs["rate"]
    return (x * keep / (1 - attrs["rate"]),)
