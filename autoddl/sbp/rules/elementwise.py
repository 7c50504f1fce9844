"""Elementwise operators, with broadcasting: any dim of the output is split.

Those that are linear in a tensor keep it Partial (a sum of summands times 2 is the sum of the
summands times 2); adding a scalar is not linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..signature import OpSpec, Signature, rule
from .build import broadcast_labels, dims_of, labelled

NONLINEAR_UNARY = (
    "relu", "gelu", "fast_gelu", "quick_gelu", "tanh", "sigmoid", "silu", "mish", "selu", "elu",
    "celu", "leaky_relu", "softplus", "softsign", "softshrink", "log_sigmoid", "hardswish",
    "hardsigmoid", "hardtanh", "threshold", "exp", "expm1", "log", "log1p", "log2", "sqrt",
    "rsqrt", "square", "abs", "reciprocal", "reciprocal_no_nan", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil",
    "round", "rint", "trunc", "sign", "scalar_add", "scalar_pow", "scalar_reverse_pow",
    "scalar_fmod", "scalar_floordiv", "clip_by_scalar", "clip_by_scalar_min",
    "clip_by_scalar_max", "dropout", "logical_not", "isnan", "isinf", "isfinite",
    "scalar_logical_equal", "scalar_logical_not_equal", "scalar_logical_less",
    "scalar_logical_less_equal", "scalar_logical_greater", "scalar_logical_greater_equal",
    "scalar_logical_and", "scalar_logical_or", "scalar_logical_xor", "hardshrink", "log10",
    "lgamma", "where_scalar_xy",
)  # fmt: skip
LINEAR_UNARY = ("negative", "scalar_mul", "scalar_div", "cast", "identity")
NONLINEAR_BINARY = (
    "broadcast_maximum", "broadcast_minimum", "elementwise_maximum", "elementwise_minimum",
    "broadcast_pow", "pow", "broadcast_fmod", "floordiv",
    "broadcast_equal", "broadcast_not_equal", "broadcast_less", "broadcast_less_equal",
    "broadcast_greater", "broadcast_greater_equal", "broadcast_logical_and",
    "broadcast_logical_or", "broadcast_logical_xor", "atan2", "xdivy",
    "broadcast_isclose_neq_nan", "broadcast_isclose_eq_nan",
)  # fmt: skip


def broadcasting(op: OpSpec, linear: Iterable[Iterable[int]] = ()) -> Iterator[Signature]:
    """Every output dim is split; inputs that are stretched along it stay Broadcast."""
    out = op.outputs[0].shape
    ins = [broadcast_labels(t.shape, out) for t in op.inputs]
    yield from labelled(op, ins, (dims_of(out),), linear=linear)


@rule(*NONLINEAR_UNARY, *NONLINEAR_BINARY)
def nonlinear(op: OpSpec) -> Iterator[Signature]:
    """Elementwise without a linear input."""
    yield from broadcasting(op)


@rule(*LINEAR_UNARY)
def linear_unary(op: OpSpec) -> Iterator[Signature]:
    """x -> y, y linear in x."""
    yield from broadcasting(op, linear=((0,),))


@rule("broadcast_add", "broadcast_sub", "add_n")
def sums(op: OpSpec) -> Iterator[Signature]:
    """Linear in all inputs together: each must be a summand if one is."""
    yield from broadcasting(op, linear=(range(len(op.inputs)),))


@rule("broadcast_mul")
def product(op: OpSpec) -> Iterator[Signature]:
    """(x, y) -> z, linear in each."""
    yield from broadcasting(op, linear=((0,), (1,)))


@rule("broadcast_div")
def quotient(op: OpSpec) -> Iterator[Signature]:
    """(x, y) -> z, linear in x."""
    yield from broadcasting(op, linear=((0,),))


@rule("bias_add")
def bias_add(op: OpSpec) -> Iterator[Signature]:
    """(a, b [n]) -> out; b runs along dim `axis` of a."""
    dims = dims_of(op.outputs[0].shape)
    axis = op.attrs["axis"] % len(dims)
    yield from labelled(op, (dims, (axis,)), (dims,), linear=((0, 1),))


@rule("prelu")
def prelu(op: OpSpec) -> Iterator[Signature]:
    """(x, alpha) -> y; alpha has one element or one per channel (dim 1)."""
    dims = dims_of(op.outputs[0].shape)
    alpha = (1,) if op.inputs[1].numel > 1 else (None,)
    yield from labelled(op, (dims, alpha), (dims,))


def _fills_zero(op: OpSpec) -> bool:
    return op.attrs.get("operand") == 0


@rule("masked_fill")
def masked_fill(op: OpSpec) -> Iterator[Signature]:
    """(x, mask) -> out; linear in x if it fills with zero."""
    yield from broadcasting(op, linear=((0,),) if _fills_zero(op) else ())


@rule("where")
def where(op: OpSpec) -> Iterator[Signature]:
    """(condition, x, y) -> out, linear in x and y together."""
    yield from broadcasting(op, linear=((1, 2),))


@rule("where_scalar_x", "where_scalar_y")
def where_scalar(op: OpSpec) -> Iterator[Signature]:
    """(condition, tensor) -> out; linear in the tensor if the scalar is zero."""
    yield from broadcasting(op, linear=((1,),) if _fills_zero(op) else ())
