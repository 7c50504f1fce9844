"""Elementwise operators, with broadcasting: any dim of the output is split.

Those that are linear in a tensor keep it Partial (a sum of summands times 2 is the sum of the
summands times 2); adding a scalar is not linear, but for zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..signature import OpSpec, Signature, rule
from .build import broadcast_labels, dims_of, labelled

# nonlinear ones by what their gradient reads: the input, the output, or nobody has looked
BY_INPUT = (
    "gelu", "fast_gelu", "quick_gelu", "tanh", "silu", "mish", "selu", "elu", "celu", "leaky_relu",
    "softplus", "softsign", "softshrink", "log_sigmoid", "hardswish", "hardsigmoid", "threshold",
    "sqrt", "rsqrt", "abs", "reciprocal", "sin", "cos", "erf", "log10", "lgamma",
)  # fmt: skip
CLIPPED = ("clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max")
BY_OUTPUT = ("sigmoid", "hardtanh", "hardshrink")
CURVES = (
    "expm1", "log1p", "log2", "reciprocal_no_nan", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "asinh", "acosh", "atanh", "erfc", "scalar_reverse_pow", "scalar_fmod", "scalar_floordiv",
)  # fmt: skip
STEPS = ("floor", "ceil", "round", "rint", "trunc", "sign")
TESTS = (
    "logical_not", "isnan", "isinf", "isfinite",
    "scalar_logical_equal", "scalar_logical_not_equal", "scalar_logical_less",
    "scalar_logical_less_equal", "scalar_logical_greater", "scalar_logical_greater_equal",
    "scalar_logical_and", "scalar_logical_or", "scalar_logical_xor",
)  # fmt: skip
COMPARISONS = (
    "broadcast_equal", "broadcast_not_equal", "broadcast_less", "broadcast_less_equal",
    "broadcast_greater", "broadcast_greater_equal", "broadcast_logical_and",
    "broadcast_logical_or", "broadcast_logical_xor",
    "broadcast_isclose_neq_nan", "broadcast_isclose_eq_nan",
)  # fmt: skip
OF_TWO = (
    "broadcast_maximum", "broadcast_minimum", "elementwise_maximum", "elementwise_minimum",
    "broadcast_pow", "pow", "broadcast_fmod", "floordiv", "atan2", "xdivy",
)  # fmt: skip


def broadcasting(op: OpSpec, linear: Iterable[Iterable[int]] = ()) -> Iterator[Signature]:
    """Every output dim is split; inputs that are stretched along it stay Broadcast."""
    out = op.outputs[0].shape
    ins = [broadcast_labels(t.shape, out) for t in op.inputs]
    yield from labelled(op, ins, (dims_of(out),), linear=linear)


def _is_zero(op: OpSpec) -> bool:
    """Whether the number of an operator is."""
    return op.attrs.get("operand") == 0


def _mask(op: OpSpec) -> tuple[float, float]:
    """One byte an element."""
    return 1 / op.inputs[0].item_bytes, 0.0


@rule("relu", saves="y0", in_place=True, nonlinear=True)
@rule(*BY_OUTPUT, saves="y0", nonlinear=True)
@rule("exp", saves="y0", nonlinear=True, float32=True)
@rule(*BY_INPUT, saves="x0", nonlinear=True)
@rule("log", "square", "scalar_pow", saves="x0", nonlinear=True, float32=True)
@rule(*CLIPPED, saves="x0", in_place=True, nonlinear=True)
@rule(*CURVES, *STEPS, *OF_TWO, saves="all")
@rule(*TESTS, *COMPARISONS, "where_scalar_xy", saves="")
@rule("dropout", saves="beside", beside=_mask, random=True)
def nonlinear(op: OpSpec) -> Iterator[Signature]:
    """Elementwise without a linear input."""
    yield from broadcasting(op)


@rule("scalar_mul", "scalar_div", saves="", in_place=True)
@rule("negative", "cast", saves="")
@rule("identity", view="same", saves="")
def linear_unary(op: OpSpec) -> Iterator[Signature]:
    """x -> y, y linear in x."""
    yield from broadcasting(op, linear=((0,),))


@rule("scalar_add", saves="", in_place=True)
def shifted(op: OpSpec) -> Iterator[Signature]:
    """x -> y, linear if it adds zero, as Python's `sum` of losses does first."""
    yield from broadcasting(op, linear=((0,),) if _is_zero(op) else ())


@rule("broadcast_add", "broadcast_sub", saves="", mixes=True)
@rule("add_n", saves="", mixes=True, in_place=True)
def sums(op: OpSpec) -> Iterator[Signature]:
    """Linear in all inputs together: each must be a summand if one is."""
    yield from broadcasting(op, linear=(range(len(op.inputs)),))


@rule("broadcast_mul", saves="other", mixes=True)
def product(op: OpSpec) -> Iterator[Signature]:
    """(x, y) -> z, linear in each."""
    yield from broadcasting(op, linear=((0,), (1,)))


@rule("broadcast_div", saves="x1 y0")
def quotient(op: OpSpec) -> Iterator[Signature]:
    """(x, y) -> z, linear in x."""
    yield from broadcasting(op, linear=((0,),))


@rule("bias_add", saves="", in_place=True)
def bias_add(op: OpSpec) -> Iterator[Signature]:
    """(a, b [n]) -> out; b runs along dim `axis` of a."""
    dims = dims_of(op.outputs[0].shape)
    axis = op.attrs["axis"] % len(dims)
    yield from labelled(op, (dims, (axis,)), (dims,), linear=((0, 1),))


@rule("prelu", saves="all")
def prelu(op: OpSpec) -> Iterator[Signature]:
    """(x, alpha) -> y; alpha has one element or one per channel (dim 1)."""
    dims = dims_of(op.outputs[0].shape)
    alpha = (1,) if op.inputs[1].numel > 1 else (None,)
    yield from labelled(op, (dims, alpha), (dims,))


@rule("masked_fill", saves="x1")
def masked_fill(op: OpSpec) -> Iterator[Signature]:
    """(x, mask) -> out; linear in x if it fills with zero."""
    yield from broadcasting(op, linear=((0,),) if _is_zero(op) else ())


@rule("where", saves="x0")
def where(op: OpSpec) -> Iterator[Signature]:
    """(condition, x, y) -> out, linear in x and y together."""
    yield from broadcasting(op, linear=((1, 2),))


@rule("where_scalar_x", "where_scalar_y", saves="x0")
def where_scalar(op: OpSpec) -> Iterator[Signature]:
    """(condition, tensor) -> out; linear in the tensor if the scalar is zero."""
    yield from broadcasting(op, linear=((1,),) if _is_zero(op) else ())
