"""Softmax over the last dim. If that is split, maxima and sums are all-reduced.

forward         m = all_reduce_max(max x);  s = all_reduce(sum exp(x - m));  y = exp(x - m) / s
backward        dx = y (dy - all_reduce(sum dy y))
of log_softmax  dx = dy - exp(y) all_reduce(sum dy)
"""

from __future__ import annotations

from collections.abc import Iterator

from ..signature import Inner, OpSpec, Signature, rule
from .build import dims_of, inner_split, replicated, splits

# per element: compare, subtract, exponentiate, sum, divide (or subtract the logarithm)
FLOPS_PER_ELEMENT = 5.0


def _flops(op: OpSpec) -> float:
    return FLOPS_PER_ELEMENT * op.inputs[0].numel


@rule("softmax", flops=_flops, saves="y0", nonlinear=True)
@rule("log_softmax", flops=_flops, saves="y0", nonlinear=True, float32=True)
def softmax(op: OpSpec) -> Iterator[Signature]:
    """x -> y over the last dim."""
    dims = dims_of(op.inputs[0].shape)
    labels = (*dims[:-1], None)
    last = dims[-1]
    yield from splits(op, (labels,), (labels,))
    yield inner_split(op, (dims,), (dims,), last, Inner(0, (last,), forward=2, backward=1))
    yield replicated(op)
