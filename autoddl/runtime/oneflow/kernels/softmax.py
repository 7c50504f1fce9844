"""Softmax over the last dim; if that is split, maxima and sums are all-reduced.

forward    m = max x over all shards;  s = all_reduce(sum exp(x - m))
backward   softmax:     dx = y (dy - all_reduce(sum dy y))
           log_softmax: dx = dy - exp(y) all_reduce(sum dy)
"""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm.groups import Group
from ...kernel import Context, Explicit
from .registry import kernel

_FAR = 1e4  # below all other scores, and a float16


@kernel("softmax")
def softmax(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [_C.softmax(x, x.ndim - 1)]
    with flow.no_grad():
        shifted, total = shifted_and_total(x, group)
        y = flow.exp(shifted) / total

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [y * (dy - group.all_reduce((dy * y).sum(dim=-1, keepdim=True)))]

    return Explicit([y], vjp)


@kernel("log_softmax")
def log_softmax(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [_C.log_softmax(x, x.ndim - 1)]
    with flow.no_grad():
        shifted, total = shifted_and_total(x, group)
        y = shifted - flow.log(total)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [dy - flow.exp(y) * group.all_reduce(dy.sum(dim=-1, keepdim=True))]

    return Explicit([y], vjp)


def shifted_and_total(x: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """x - m and sum exp(x - m) over the last dim of the whole, m its maximum there."""
    shifted = x - group.all_max(x.amax(dim=-1, keepdim=True))
    return shifted, group.all_reduce(flow.exp(shifted).sum(dim=-1, keepdim=True))


@kernel("attention")
def attention(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(q, k, v, mask?) -> softmax(q k^T scale + mask) v; plans of torch models have it."""
    q, k, v, *masks = inputs
    times = q.shape[1] // k.shape[1]
    if times > 1:
        around = (*k.shape[:2], times, *k.shape[2:])
        k = _C.expand(k.unsqueeze(2), around).reshape(k.shape[0], -1, *k.shape[2:])
        around = (*v.shape[:2], times, *v.shape[2:])
        v = _C.expand(v.unsqueeze(2), around).reshape(v.shape[0], -1, *v.shape[2:])
    scores = _C.matmul(q, k, False, True, attrs["scale"])
    if attrs["causal"]:
        seen = flow.tril(flow.ones(scores.shape[-2:], device=q.device.type))
        masks = [*masks, (seen - 1) * _FAR]
    for mask in masks:
        added = (mask.to(q.dtype) - 1) * _FAR if mask.dtype == flow.bool else mask
        scores = scores + added
    return [_C.matmul(_C.softmax(scores, scores.ndim - 1), v, False, False, 1.0)]
