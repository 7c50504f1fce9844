"""Softmax over the last dim, and attention. If that dim is split, maxima and sums are all-reduced.

forward         m = all_reduce_max(max x);  s = all_reduce(sum exp(x - m));  y = exp(x - m) / s
backward        dx = y (dy - all_reduce(sum dy y))
of log_softmax  dx = dy - exp(y) all_reduce(sum dy)

Attention is softmax(q k^T scale + mask) v, whose scores nobody keeps: the batch, the heads and v's
last dim are split, and the rows of q where no mask is causal. Where groups of q's heads share a
head of k and v (grouped-query attention), all three are split together at boundaries of these
groups only (`Signature.limit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..placement import B, S
from ..signature import Inner, OpSpec, Signature, rule
from .build import (
    broadcast_labels,
    dims_of,
    inner_split,
    labelled,
    natural,
    replicated,
    splits,
)

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
    room = (2.0 if op.kind == "softmax" else 1.0, 1.0)
    inner = Inner(0, (last,), forward=2, backward=1, room=room)
    yield inner_split(op, (dims,), (dims,), last, inner)
    yield replicated(op)


def _attention_flops(op: OpSpec) -> float:
    """Of two products and a softmax; of a causal mask half the scores are needed."""
    q, k, v = (t.shape for t in op.inputs[:3])
    scores = math.prod(q[:-1]) * k[-2]
    return scores * (2.0 * (q[-1] + v[-1]) + FLOPS_PER_ELEMENT) / (2 if op.attrs["causal"] else 1)


def _logarithms(op: OpSpec) -> tuple[float, float]:
    """Of each row's sum of exponentials, a float32."""
    return 0.0, 4 / (op.outputs[0].item_bytes * max(1, op.outputs[0].shape[-1]))


@rule(
    "attention",
    flops=_attention_flops,
    heavy=True,
    saves="x0 x1 x2 x3 y0 beside",
    beside=_logarithms,
    nonlinear=True,
)
def attention(op: OpSpec) -> Iterator[Signature]:
    """(q [b, h, t, e], k [b, g, s, e], v [b, g, s, w], mask [t, s] ...?) -> out [b, h, t, w].

    attrs causal: row i of q sees rows 0 to i of k; scale: of the scores. A mask of booleans says
    what is seen, one of floats is added to the scores; its dims in front may broadcast.
    """
    q, k = op.inputs[0].shape, op.inputs[1].shape
    heads = "h" if q[1] == k[1] else None  # of k and v
    rows = None if op.attrs["causal"] else "t"
    together = q[1] == k[1] or k[1] == 1
    ins = [
        ("b", "h" if together else None, rows, None),
        ("b", heads, None, None),
        ("b", heads, None, "w"),
    ]
    names = ("b", "h" if together else None, rows, None)
    for mask in op.inputs[3:]:
        found = broadcast_labels(mask.shape, (*q[:3], k[2]))
        ins.append(tuple(None if d is None else names[d] for d in found))
    out = ("b", "h" if together else None, rows, "w")
    if not together and all(len(t.shape) < 3 or t.shape[-3] == 1 for t in op.inputs[3:]):
        masks = (B,) * len(op.inputs[3:])
        yield natural(op, (S(1), S(1), S(1), *masks), (S(1),), limit=k[1])
    yield from labelled(op, ins, (out,), linear=((2,),))
