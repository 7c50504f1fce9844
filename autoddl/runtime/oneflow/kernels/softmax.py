"""Softmax over the last dim, and attention with it."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
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
        return inner.softmax(x, group)


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
        return inner.log_softmax(x, group)


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
