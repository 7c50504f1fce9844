"""Functions of one tensor, element by element."""

import autograd.numpy as np
from autograd.scipy.special import erf, erfc, gammaln

from .registry import elementwise, op


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

for _kind, _function in UNARY.items():
    op(_kind)(elementwise(_function))
