"""Elementwise operators."""

from typing import Any

from autoddl.sbp.rules import RULES
from autoddl.sbp.rules.elementwise import COMPARISONS, OF_TWO, nonlinear

from .case import Case, case, out
from .draw import f, flags, index, positive, unit

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


BINARY = (*OF_TWO, *COMPARISONS)
UNARY = [
    kind for kind, rule in RULES.items()
    if rule.signatures is nonlinear and kind not in (*BINARY, "where_scalar_xy")
]  # fmt: skip
ELEMENTWISE = (
    *map(unary_case, (*UNARY, "negative", "scalar_mul", "scalar_div")),
    *map(binary_case, BINARY),
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
