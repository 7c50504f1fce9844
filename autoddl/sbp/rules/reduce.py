"""Reductions: kept dims are split; a sum over a split dim is Partial.

A mean over a split dim is Partial as well, if every device divides by the size of the whole: the
local attributes of `reduce_mean` carry it as `count`. `var` all-reduces its statistics; a running
sum adds that of the shards before, which moves as much as an all-reduce of the shards' sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..layout import Shape
from ..signature import Attrs, Inner, OpSpec, Signature, rule
from .build import canonical, dims_of, drop, inner_split, labelled, partials, replicated, splits


def per_input_element(op: OpSpec) -> float:
    """One operation per element of the first input."""
    return float(op.inputs[0].numel)


def _labels(op: OpSpec, axis: str, keepdims: str) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Labels of the input, and of the output (None where a reduced dim is kept with size 1)."""
    dims = dims_of(op.inputs[0].shape)
    reduced = canonical(op.attrs[axis], len(dims)) if dims else ()
    if op.attrs[keepdims]:
        return dims, drop(dims, *reduced)
    return dims, tuple(d for d in dims if d not in reduced)


@rule("reduce_sum", flops=per_input_element, saves="")
def reduce_sum(op: OpSpec) -> Iterator[Signature]:
    """x -> y; attrs axis, keepdims."""
    x, y = _labels(op, "axis", "keepdims")
    yield from labelled(op, (x,), (y,), linear=((0,),))


def mean_count(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """Add `count`, the global number of elements that one mean is over: sum locally, divide."""
    del ins, outs
    shape = op.inputs[0].shape
    axes = canonical(op.attrs.get("axis", ()), len(shape)) if shape else ()
    return {**op.attrs, "count": math.prod(shape[a] for a in axes)}


@rule("reduce_mean", local_attrs=mean_count, flops=per_input_element, saves="")
def reduce_mean(op: OpSpec) -> Iterator[Signature]:
    """x -> y; attrs axis, keepdims, and `count` on shards."""
    x, y = _labels(op, "axis", "keepdims")
    yield from labelled(op, (x,), (y,), linear=((0,),))


@rule(
    "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all",
    flops=per_input_element, saves="all",
)  # fmt: skip
def reduce_other(op: OpSpec) -> Iterator[Signature]:
    """x -> y; only kept dims may be split."""
    x, y = _labels(op, "axis", "keepdims")
    yield from labelled(op, (drop(x, *(set(x) - set(y))),), (y,))


@rule("reduce_nansum", flops=per_input_element, saves="x0")
def reduce_nansum(op: OpSpec) -> Iterator[Signature]:
    """x -> y, without the elements that are NaN: that cannot be told of summands."""
    x, y = _labels(op, "axis", "keepdims")
    yield from labelled(op, (x,), (y,))


@rule("argmax", "median_with_indices", "median_indices", flops=per_input_element, saves="all")
def of_last_dim(op: OpSpec) -> Iterator[Signature]:
    """x -> index of the largest element, or the median, of the last dim."""
    dims = dims_of(op.outputs[0].shape)
    yield from labelled(op, ((*dims, None),), (dims,))


def _var_flops(op: OpSpec) -> float:
    return 4.0 * op.inputs[0].numel  # sum, subtract, square, sum


def _centred(op: OpSpec) -> tuple[float, float]:
    """x less its mean."""
    return 1.0, 0.0


@rule("var", flops=_var_flops, saves="beside", beside=_centred, float32=True)
def var(op: OpSpec) -> Iterator[Signature]:
    """x -> y; attrs dim, keepdim, unbiased. A split reduced dim: all-reduce sum and squares."""
    x, y = _labels(op, "dim", "keepdim")
    reduced = tuple(d for d in x if d not in y)
    yield from splits(op, (drop(x, *reduced),), (y,))
    for d in reduced:
        yield inner_split(op, (x,), (y,), d, Inner(0, reduced, forward=2, backward=0))
    yield replicated(op)


@rule("cumsum", flops=per_input_element, saves="")
def cumsum(op: OpSpec) -> Iterator[Signature]:
    """x -> y, running sums along attr dim. If that is split: the sums of the shards before."""
    dims = dims_of(op.inputs[0].shape)
    (along,) = canonical(op.attrs["dim"], len(dims))
    labels = drop(dims, along)
    yield from splits(op, (labels,), (labels,))
    yield inner_split(op, (dims,), (dims,), along, Inner(0, (along,), forward=1, backward=1))
    yield from partials(op, (0,))
    yield replicated(op)


@rule("top_k", "arg_sort", flops=per_input_element, saves="")
def ordering(op: OpSpec) -> Iterator[Signature]:
    """x -> indices along the last dim."""
    labels = (*dims_of(op.inputs[0].shape)[:-1], None)
    yield from labelled(op, (labels,), (labels,))
