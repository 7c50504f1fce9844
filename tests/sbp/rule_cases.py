"""Operators with which the rules are proven: specs as the tracer gives them, and inputs.

`CASES` has a few operators per kind: shapes, transpose flags, broadcasting, kept dims. No two sizes
of one operator are equal unless they belong together, so that a rule that mixes up dims is found,
and most have the factors 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.rules.elementwise import NONLINEAR_BINARY, NONLINEAR_UNARY
from autoddl.sbp.signature import OpSpec

Draw = Callable[[np.random.Generator, tuple[int, ...]], Any]


@dataclass(frozen=True)
class Arg:
    """An input: its spec, and how its values are drawn."""

    spec: TensorSpec
    draw: Draw


@dataclass(frozen=True)
class Case:
    """An operator and its inputs, as arrays of the specs' dtypes."""

    id: str
    op: OpSpec
    args: tuple[Arg, ...]

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        return [np.asarray(a.draw(rng, a.spec.shape)).astype(a.spec.dtype) for a in self.args]


def f(*shape: int) -> Arg:
    """Any float."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.standard_normal(s))


def positive(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: rng.uniform(1.1, 3.0, s))


def unit(*shape: int) -> Arg:
    """Between 0.1 and 0.9: probabilities, and arguments of arc functions."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.uniform(0.1, 0.9, s))


def shares(*shape: int) -> Arg:
    """Positive, with sum 1 over the last dim: a distribution over classes."""
    return Arg(TensorSpec(shape), lambda rng, s: rng.dirichlet(np.ones(s[-1]), s[:-1]))


def index(n: int, *shape: int, start: int = 0) -> Arg:
    """n integers from `start`."""
    spec = TensorSpec(shape, "int64")
    return Arg(spec, lambda rng, s: rng.integers(start, start + n, s))


def symbols(n: int, *shape: int) -> Arg:
    """Integers below n, but not zero."""
    return index(n - 1, *shape, start=1)


def rising(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: np.sort(rng.standard_normal(s)))


def nans(*shape: int) -> Arg:
    return Arg(TensorSpec(shape), lambda rng, s: np.where(rng.random(s) < 0.2, np.nan, 1.0))


def counts(n: int, *shape: int, sums: bool = False) -> Arg:
    """n, or its multiples."""
    spec = TensorSpec(shape, "int32")
    return Arg(spec, lambda rng, s: n * np.arange(1, s[0] + 1) if sums else np.full(s, n))


def flags(*shape: int) -> Arg:
    return Arg(TensorSpec(shape, "bool"), lambda rng, s: rng.random(s) < 0.5)


def out(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape, dtype)


def case(name: str, kind: str, args: tuple[Arg, ...], *outs: TensorSpec, **attrs: Any) -> Case:
    label = f"{kind}-{name}" if name else kind
    return Case(label, OpSpec(kind, attrs, tuple(a.spec for a in args), outs), args)


def product_case(name: str, kind: str, a: Arg, b: Arg, o: TensorSpec, ta=False, tb=False) -> Case:
    return case(name, kind, (a, b), o, transpose_a=ta, transpose_b=tb, alpha=1.0)


MATMUL = (
    product_case("nn", "matmul", f(4, 12), f(12, 6), out(4, 6)),
    product_case("nt", "matmul", f(4, 12), f(6, 12), out(4, 6), tb=True),
    product_case("tn", "matmul", f(12, 4), f(12, 6), out(4, 6), ta=True),
    product_case("tt", "matmul", f(12, 4), f(6, 12), out(4, 6), ta=True, tb=True),
    case("alpha", "matmul", (f(4, 12), f(12, 6)), out(4, 6),
         transpose_a=False, transpose_b=False, alpha=0.5),
    product_case("linear", "broadcast_matmul", f(4, 6, 8), f(12, 8), out(4, 6, 12), tb=True),
    product_case("left", "broadcast_matmul", f(8, 12), f(4, 12, 6), out(4, 8, 6)),
    product_case("stretched", "broadcast_matmul", f(6, 1, 4, 8), f(2, 8, 12), out(6, 2, 4, 12)),
    product_case("3d", "batch_matmul", f(6, 4, 8), f(6, 8, 12), out(6, 4, 12)),
    product_case("4d", "batch_matmul", f(2, 6, 4, 8), f(2, 6, 12, 8), out(2, 6, 4, 12), tb=True),
    case("", "matrix_vector_product", (f(4, 6), f(6)), out(4)),
    case("", "vector_matrix_product", (f(4), f(4, 6)), out(6)),
    case("", "dot", (f(12), f(12)), out()),
    case("", "linalg_cross", (f(4, 3, 6), f(4, 3, 6)), out(4, 3, 6), dim=1),
    case("stretched", "linalg_cross", (f(4, 3, 6), f(3, 1)), out(4, 3, 6), dim=1),
    case("", "inv", (f(4, 6, 5, 5),), out(4, 6, 5, 5)),
)  # fmt: skip


def conv_case(name: str, x: Arg, w: Arg, o: TensorSpec, kind="conv2d", **changes: Any) -> Case:
    n = len(x.spec.shape) - 2
    attrs = {
        "data_format": "channels_first", "dilation_rate": (1,) * n, "filters": w.spec.shape[0],
        "groups": 1, "kernel_size": w.spec.shape[2:], "padding_before": (0,) * n,
        "strides": (1,) * n,
    }  # fmt: skip
    return case(name, kind, (x, w), o, **{**attrs, **changes})


CONV = (
    conv_case("padded", f(4, 6, 5, 3), f(12, 6, 3, 3), out(4, 12, 5, 3), padding_before=(1, 1)),
    conv_case("strided", f(4, 6, 7, 7), f(2, 6, 3, 3), out(4, 2, 3, 3), strides=(2, 2)),
    conv_case("dilated", f(2, 4, 7, 7), f(6, 4, 3, 3), out(2, 6, 3, 3), dilation_rate=(2, 2)),
    conv_case("groups", f(2, 12, 5, 5), f(24, 3, 3, 3), out(2, 24, 3, 3), groups=4),
    conv_case("depthwise", f(2, 12, 5, 5), f(12, 1, 3, 3), out(2, 12, 3, 3), groups=12),
    conv_case("channels_last", f(4, 5, 5, 6), f(12, 3, 3, 6), out(4, 3, 3, 12),
              data_format="channels_last", kernel_size=(3, 3)),
    conv_case("", f(4, 6, 9), f(12, 6, 3), out(4, 12, 7), kind="conv1d"),
    conv_case("", f(2, 6, 3, 3, 3), f(4, 6, 2, 2, 2), out(2, 4, 2, 2, 2), kind="conv3d"),
)  # fmt: skip


def transposed_case(
    name: str, x: Arg, w: Arg, o: TensorSpec, kind="deconv2d", **changes: Any
) -> Case:
    n = len(x.spec.shape) - 2
    filters = w.spec.shape[1] * changes.get("groups", 1)
    changes = {"filters": filters, "output_padding": (0,) * n, **changes}
    return conv_case(name, x, w, o, kind, **changes)


TRANSPOSED_CONV = (
    transposed_case("padded", f(4, 6, 5, 3), f(6, 12, 3, 3), out(4, 12, 5, 3),
                    padding_before=(1, 1)),
    transposed_case("strided", f(4, 6, 3, 3), f(6, 2, 3, 3), out(4, 2, 8, 8),
                    strides=(2, 2), output_padding=(1, 1)),
    transposed_case("dilated", f(2, 4, 3, 3), f(4, 6, 3, 3), out(2, 6, 7, 7),
                    dilation_rate=(2, 2)),
    transposed_case("groups", f(2, 12, 3, 3), f(12, 2, 3, 3), out(2, 8, 5, 5), groups=4),
    transposed_case("channels_last", f(4, 3, 3, 6), f(6, 3, 3, 3), out(4, 5, 5, 3),
                    data_format="channels_last"),
    transposed_case("", f(4, 6, 7), f(6, 12, 3), out(4, 12, 9), kind="deconv1d"),
    transposed_case("", f(2, 6, 2, 2, 2), f(6, 4, 2, 2, 2), out(2, 4, 3, 3, 3), kind="deconv3d"),
)  # fmt: skip

WINDOW = {
    "ceil_mode": False, "data_format": "channels_first", "kernel_size": (2, 2),
    "padding": (0, 0), "stride": (2, 2),
}  # fmt: skip
MAX = {"dilation": (1, 1), "return_indices": False}
AVG = {"count_include_pad": True, "divisor_override": 0}
SCALES = {"data_format": "channels_first", "height_scale": 2.0, "width_scale": 2.0,
          "output_size": ()}  # fmt: skip
LINE = {"data_format": "channels_first", "output_size": (), "scale_factor": 2.0}
PATCHES = {"data_format": "channels_first", "dilation_rate": (1, 2), "kernel_size": (2, 2),
           "padding": (0, 0), "strides": (1, 1)}  # fmt: skip
OWN = ("reflection", "replication")
PADDED = {"kernel_size": (3, 3), "padding": (1, 1)}

POOLING = (
    case("", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **MAX),
    case("padded", "max_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **MAX),
    case("", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **WINDOW, **AVG),
    case("padded", "avg_pool_2d", (f(4, 6, 6, 8),), out(4, 6, 3, 4), **{**WINDOW, **PADDED}, **AVG),
    case("", "avg_pool_1d", (f(4, 6, 8),), out(4, 6, 4), **AVG,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,)}),
    case("", "avg_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), **AVG,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3}),
    case("", "max_pool_1d", (f(4, 6, 8),), out(4, 6, 4), return_indices=False,
         **{**WINDOW, "kernel_size": (2,), "padding": (0,), "stride": (2,), "dilation": (1,)}),
    case("", "max_pool_3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1), return_indices=False,
         **{**WINDOW, "kernel_size": (2,) * 3, "padding": (0,) * 3, "stride": (2,) * 3,
            "dilation": (1,) * 3}),
    case("", "adaptive_avg_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("", "adaptive_max_pool1d", (f(4, 6, 8),), out(4, 6, 2), output_size=(2,)),
    case("", "adaptive_max_pool3d", (f(2, 4, 4, 6, 2),), out(2, 4, 2, 3, 1),
         output_size=(2, 3, 1)),
    case("whole", "adaptive_avg_pool2d", (f(4, 6, 2, 8),), out(4, 6, 1, 1), output_size=(1, 1)),
    case("uneven", "adaptive_avg_pool2d", (f(4, 6, 5, 8),), out(4, 6, 2, 3), output_size=(2, 3)),
    case("", "adaptive_avg_pool1d", (f(4, 6, 8),), out(4, 6, 1), output_size=(1,)),
    case("", "adaptive_max_pool2d", (f(4, 6, 4, 8),), out(4, 6, 2, 2), output_size=(2, 2)),
    case("", "upsample_nearest_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), **SCALES),
    case("", "upsample_bilinear_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4),
         align_corners=False, **SCALES),
    case("", "upsample_nearest_1d", (f(4, 6, 5),), out(4, 6, 10), **LINE),
    case("", "upsample_linear_1d", (f(4, 6, 5),), out(4, 6, 10), align_corners=False, **LINE),
    case("", "upsample_bicubic_2d", (f(4, 6, 3, 2),), out(4, 6, 6, 4), align_corners=False,
         **SCALES),
    case("", "upsample_nearest_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         **SCALES),
    case("", "upsample_trilinear_3d", (f(4, 6, 3, 2, 1),), out(4, 6, 6, 4, 2), depth_scale=2.0,
         align_corners=False, **SCALES),
    *(case("", f"{mode}_pad1d", (f(4, 6, 5),), out(4, 6, 8), padding=(1, 2)) for mode in OWN),
    *(case("", f"{mode}_pad2d", (f(4, 6, 3, 5),), out(4, 6, 4, 8), padding=(1, 2, 0, 1))
      for mode in OWN),
    case("", "unfold", (f(4, 6, 5, 4),), out(4, 24, 8), **PATCHES),
    case("overlapping", "unfold", (f(4, 6, 3, 2),), out(4, 24, 8),
         **{**PATCHES, "strides": (1, 1), "padding": (1, 1)}),
    case("", "fold", (f(4, 24, 8),), out(4, 6, 5, 4), output_size=(5, 4), **PATCHES),
    case("overlapping", "fold", (f(4, 24, 8),), out(4, 6, 3, 2), output_size=(3, 2),
         **{**PATCHES, "strides": (1, 1), "padding": (1, 1)}),
    case("", "grid_sample", (f(4, 6, 3, 5), f(4, 8, 12, 2)), out(4, 6, 8, 12),
         align_corners=False, interpolation_mode="bilinear", padding_mode="zeros"),
    case("", "affine_grid", (f(6, 2, 3),), out(6, 3, 5, 2), align_corners=False,
         size=(6, 4, 3, 5)),
    case("", "pad", (f(4, 6, 3, 2),), out(4, 6, 5, 2), padding=(0, 0, 1, 1),
         padding_before=(0, 0, 1, 0), padding_after=(0, 0, 1, 0), floating_constant_value=0.0,
         integral_constant_value=0),
    case("value", "pad", (f(4, 6),), out(4, 9), padding=(1, 2), padding_before=(0, 1),
         padding_after=(0, 2), floating_constant_value=0.5, integral_constant_value=0),
)  # fmt: skip

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


ELEMENTWISE = (
    *(unary_case(kind) for kind in (*NONLINEAR_UNARY, "negative", "scalar_mul", "scalar_div")
      if kind != "where_scalar_xy"),
    *(binary_case(kind) for kind in NONLINEAR_BINARY),
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

REDUCE = (
    case("last", "reduce_sum", (f(4, 6, 8),), out(4, 6), axis=(2,), keepdims=False),
    case("kept", "reduce_sum", (f(4, 6, 8),), out(4, 6, 1), axis=(2,), keepdims=True),
    case("two", "reduce_sum", (f(4, 6, 8),), out(6), axis=(0, 2), keepdims=False),
    case("all", "reduce_sum", (f(4, 6),), out(), axis=(0, 1), keepdims=False),
    case("ints", "reduce_sum", (index(9, 4, 6),), out(6, dtype="int64"), axis=(0,),
         keepdims=False),
    case("last", "reduce_mean", (f(4, 6, 8),), out(4, 6), axis=(2,), keepdims=False),
    case("all", "reduce_mean", (f(4, 6),), out(), axis=(0, 1), keepdims=False),
    *(case("", kind, (f(4, 6, 8),), out(4, 8), axis=(1,), keepdims=False)
      for kind in ("reduce_max", "reduce_min", "reduce_prod")),
    case("kept", "reduce_max", (f(4, 6, 8),), out(4, 1, 8), axis=(1,), keepdims=True),
    *(case("", kind, (flags(4, 6, 8),), out(4, 8, dtype="bool"), axis=(1,), keepdims=False)
      for kind in ("reduce_any", "reduce_all")),
    case("", "argmax", (f(4, 6, 8),), out(4, 6, dtype="int64")),
    case("last", "var", (f(4, 6, 8),), out(4, 6, 1), dim=(2,), keepdim=True, unbiased=False),
    case("unbiased", "var", (f(4, 6, 8),), out(4, 8), dim=(1,), keepdim=False, unbiased=True),
    case("two", "var", (f(4, 6, 8),), out(4, 1, 1), dim=(1, 2), keepdim=True, unbiased=False),
    case("all", "var", (f(4, 6),), out(), dim=(0, 1), keepdim=False, unbiased=True),
    case("", "reduce_nansum", (nans(4, 6, 8),), out(4, 8), axis=(1,), keepdims=False),
    case("", "median_with_indices", (f(4, 6, 8),), out(4, 6)),
    case("", "cumsum", (f(4, 6, 8),), out(4, 6, 8), dim=1),
    case("", "top_k", (f(4, 6, 8),), out(4, 6, 2, dtype="int64"), k=2, sorted=True),
    case("", "arg_sort", (f(4, 6, 8),), out(4, 6, 8, dtype="int64"), direction="ASCENDING"),
)  # fmt: skip

SOFTMAX = tuple(
    case(name, kind, (f(*shape),), out(*shape))
    for kind in ("softmax", "log_softmax")
    for name, shape in (("2d", (4, 12)), ("4d", (2, 4, 6, 12)))
)

LOSS = (
    case("", "nll", (f(4, 12), index(12, 4)), out(4), out(4), ignore_index=-100),
    case("ignored", "nll", (f(8, 6), index(6, 8)), out(8), out(8), ignore_index=1),
    case("weighted", "nll", (f(4, 12), index(12, 4), positive(12)), out(4), out(4),
         ignore_index=-100),
    case("", "sparse_softmax_cross_entropy", (f(4, 12), index(12, 4)), out(4), depth=12),
    case("3d", "sparse_softmax_cross_entropy", (f(2, 4, 6), index(6, 2, 4)), out(2, 4), depth=6),
    case("", "softmax_cross_entropy", (f(4, 12), shares(4, 12)), out(4)),
    case("", "smooth_l1_loss", (f(4, 6), f(4, 6)), out(4, 6), beta=1.0),
    case("", "kl_div_loss", (f(4, 6), unit(4, 6)), out(4, 6), log_target=False),
    case("", "binary_cross_entropy", (unit(4, 6), unit(4, 6)), out(4, 6)),
    case("weighted", "binary_cross_entropy", (unit(4, 6), unit(4, 6), unit(4, 6)), out(4, 6)),
    case("", "binary_cross_entropy_with_logits", (f(4, 6), unit(4, 6)), out(4, 6),
         has_pos_weight=False),
    case("pos_weight", "binary_cross_entropy_with_logits", (f(4, 6), unit(4, 6), positive(6)),
         out(4, 6), has_pos_weight=True),
    case("", "ctc_loss", (f(7, 6, 5), symbols(5, 6, 3), index(1, 6, start=7), index(3, 6, start=1)),
         out(6), blank=0, max_target_length=3, zero_infinity=False),
    case("", "binary_cross_entropy_with_logits_reduce_mean", (f(4, 6), unit(4, 6)), out()),
)  # fmt: skip

BATCH_NORM = {"axis": 1, "epsilon": 1e-5, "momentum": 0.9}
LAYER_NORM = {"begin_norm_axis": 2, "begin_params_axis": 2, "epsilon": 1e-5}
FOUR = (f(6), positive(6), f(6), f(6))

NORMALIZE = (
    case("images", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=True,
         **BATCH_NORM),
    case("rows", "normalization", (f(4, 6), *FOUR), out(4, 6), training=True, **BATCH_NORM),
    case("untracked", "normalization", (f(4, 6, 3, 2), f(6), f(6)), out(4, 6, 3, 2),
         training=True, **BATCH_NORM),
    case("eval", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=False,
         **BATCH_NORM),
    case("", "layer_norm", (f(4, 6, 8), f(8), f(8)), out(4, 6, 8), center=True, scale=True,
         **LAYER_NORM),
    case("plain", "layer_norm", (f(4, 6, 8),), out(4, 6, 8), center=False, scale=False,
         **LAYER_NORM),
    case("two_dims", "layer_norm", (f(4, 6, 8), f(6, 8), f(6, 8)), out(4, 6, 8), center=True,
         scale=True, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5),
    case("", "rms_norm", (f(4, 6, 8), f(8)), out(4, 6, 8), epsilon=1e-5, normalized_shape=(8,)),
    case("", "l2_normalize", (f(4, 6, 8),), out(4, 6, 8), axis=1, epsilon=1e-12),
)  # fmt: skip

BORDERS: dict[str, Any] = {"out_int32": False, "right": True}

GATHER = (
    case("embedding", "gather", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), axis=0),
    case("bag", "gather", (f(12, 8), index(12, 4)), out(4, 8), axis=0),
    case("columns", "gather", (f(4, 12), index(12, 6)), out(4, 6), axis=1),
    case("middle", "gather", (f(4, 12, 8), index(12, 6)), out(4, 6, 8), axis=1),
    case("", "embedding", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), padding_idx=0,
         scale_grad_by_freq=False),
    case("by_frequency", "embedding", (f(12, 8), index(12, 24)), out(24, 8), padding_idx=0,
         scale_grad_by_freq=True),
    case("triangle", "gather_nd", (f(4, 4, 8), index(4, 6, 2)), out(6, 8)),
    case("rows", "gather_nd", (f(12, 8), index(12, 6, 1)), out(6, 8)),
    case("", "dim_gather", (f(4, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("part", "dim_gather", (f(8, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("", "batch_gather", (f(4, 12, 8), index(12, 4, 6)), out(4, 6, 8)),
    case("rows", "batch_gather", (f(4, 6, 12), index(12, 4, 6, 2)), out(4, 6, 2)),
    case("", "searchsorted", (rising(12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("rows", "searchsorted", (rising(4, 12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("", "in_top_k", (index(12, 6), f(6, 12)), out(6, dtype="bool"), k=3),
    case("", "dim_scatter_update", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("part", "dim_scatter_update", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=1.5),
    case("zero", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=0.0),
    case("", "dim_scatter_add", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("nodes", "dim_scatter_add", (f(5, 6), index(5, 12, 6), f(12, 6)), out(5, 6), dim=0),
    case("part", "dim_scatter_add", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("ints", "dim_scatter_add", (index(9, 4, 12), index(12, 4, 6), index(9, 4, 6)),
         out(4, 12, dtype="int64"), dim=1),
    case("", "scatter_nd", (index(5, 12, 1), f(12, 6)), out(5, 6), shape=(5, 6)),
    case("cells", "scatter_nd", (index(3, 4, 6, 2), f(4, 6, 8)), out(5, 3, 8), shape=(5, 3, 8)),
    case("", "tensor_scatter_nd_update", (f(12, 6), index(12, 4, 1), f(4, 6)), out(12, 6)),
    case("", "one_hot", (index(12, 4, 6),), out(4, 6, 12, dtype="int64"), depth=12,
         dtype="int64", floating_on_value=0.0, floating_off_value=0.0, integer_on_value=1,
         integer_off_value=0),
)  # fmt: skip


def reshape_case(name: str, source: tuple[int, ...], target: tuple[int, ...]) -> Case:
    return case(name, "reshape", (f(*source),), out(*target), shape=target)


TRIL = {"floating_fill_value": 0.0, "integer_fill_value": 0, "is_floating_fill_value": False}

SHAPE = (
    reshape_case("heads", (2, 4, 24), (2, 4, 6, 4)),
    reshape_case("merge_heads", (2, 4, 6, 4), (2, 4, 24)),
    reshape_case("flatten", (4, 6, 2, 3), (4, 36)),
    reshape_case("rows", (4, 6, 8), (24, 8)),
    reshape_case("regroup", (6, 4), (4, 6)),
    reshape_case("regroup_more", (2, 12, 4), (8, 3, 4)),
    reshape_case("ones", (4, 1, 6), (1, 4, 6, 1)),
    reshape_case("window", (2, 12, 12, 4), (2, 4, 3, 4, 3, 4)),
    case("ints", "reshape", (index(9, 4, 6),), out(24, dtype="int64"), shape=(24,)),
    case("", "squeeze", (f(4, 1, 6, 1),), out(4, 6), axes=(1, 3)),
    case("", "expand_dims", (f(4, 6),), out(4, 1, 6), axis=1),
    case("", "transpose", (f(4, 6, 2, 8),), out(2, 4, 8, 6), perm=(2, 0, 3, 1)),
    case("stretch", "expand", (f(1, 6, 1),), out(4, 6, 8), expand_shape=(4, 6, 8)),
    case("prepend", "expand", (f(6, 8),), out(4, 6, 8), expand_shape=(4, 6, 8)),
    case("", "narrow", (f(4, 6, 12),), out(4, 6, 4), dim=2, start=4, length=4),
    case("whole", "narrow", (f(4, 6),), out(4, 6), dim=1, start=0, length=6),
    case("", "slice", (f(4, 6, 8),), out(4, 2, 8), start=(0, 1, 0), stop=(4, 3, 8),
         step=(1, 1, 1)),
    case("strided", "slice", (f(4, 6, 8),), out(4, 3, 4), start=(0, 0, 1), stop=(4, 6, 8),
         step=(1, 2, 2)),
    case("one", "slice", (f(3, 4, 6),), out(1, 4, 6), start=(1, 0, 0), stop=(2, 4, 6),
         step=(1, 1, 1)),
    case("", "slice_update", (f(4, 6, 8), f(4, 2, 8)), out(4, 6, 8), start=(0, 1, 0),
         stop=(4, 3, 8), step=(1, 1, 1)),
    case("strided", "slice_update", (f(4, 6, 8), f(4, 3, 4)), out(4, 6, 8), start=(0, 0, 1),
         stop=(4, 6, 8), step=(1, 2, 2)),
    case("", "unfold_tensor", (f(4, 8, 6),), out(4, 3, 6, 4), dimension=1, size=4, step=2),
    case("", "concat", (f(4, 6), f(4, 2), f(4, 12)), out(4, 20), axis=1),
    case("tokens", "concat", (f(4, 1, 8), f(4, 6, 8)), out(4, 7, 8), axis=1),
    case("", "stack", (f(4, 6), f(4, 6)), out(4, 2, 6), axis=1),
    case("", "roll", (f(4, 6, 8, 2),), out(4, 6, 8, 2), dims=(1, 2), shifts=(-1, 3)),
    case("", "flip", (f(4, 6, 8),), out(4, 6, 8), dims=(1,)),
    case("", "tril", (f(4, 6, 6),), out(4, 6, 6), diagonal=0, **TRIL),
    case("", "triu", (f(4, 6, 6),), out(4, 6, 6), diagonal=1),
)  # fmt: skip

SOURCE = (
    case("", "constant", (), out(4, 6), shape=(4, 6), floating_value=2.5, integer_value=0,
         is_floating_value=True, dtype="float32"),
    case("", "arange", (), out(12, dtype="int64"), integer_start=0, integer_limit=12,
         integer_delta=1, float_start=0.0, float_limit=0.0, float_delta=0.0, dtype="int64"),
    case("", "repeat_interleave", (counts(2, 6), counts(2, 6, sums=True)),
         out(12, dtype="int32"), repeat_num=12),
    case("", "eye", (), out(4, 6), rows=4, cols=6, dtype="float32"),
    case("", "fork", (f(4, 6),), out(4, 6)),
    case("ints", "fork", (index(9, 4, 6),), out(4, 6, dtype="int64")),
    case("", "loss", (f(),)),
    case("", "opaque", (f(4, 6), f(6, 8)), out(4, 8), module="m", batchwise=False, num_args=1),
    case("batchwise", "opaque", (f(4, 6), index(9, 4, 3), f(6, 8)), out(4, 8), module="m",
         batchwise=True, num_args=2),
    case("side_input", "opaque", (f(4, 6), f(6, 8)), out(4, 8), module="m", batchwise=True,
         num_args=2),
)  # fmt: skip

CASES = (*MATMUL, *CONV, *TRANSPOSED_CONV, *POOLING, *ELEMENTWISE, *REDUCE, *SOFTMAX, *LOSS,
         *NORMALIZE, *GATHER, *SHAPE, *SOURCE)  # fmt: skip
