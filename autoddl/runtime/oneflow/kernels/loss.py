"""Losses. With split classes a shard accounts for the targets among its own classes."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit
from .registry import kernel, output_kernel


@kernel("nll")
def nll(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input [..., c], target [...], weight [c]?) -> (-w input[target], w), 0 where ignored."""
    x, target = inputs[:2]
    weight = nll_weight(ctx, inputs, attrs)
    counts = target != attrs["ignore_index"]
    held, is_held = inner.held_indices(target, ctx.offset(0, x.ndim - 1), x.shape[-1])
    picked = _C.dim_gather(x, x.ndim - 1, held.unsqueeze(-1)).squeeze(-1)
    # what is not meant may be -inf, of a class that is masked, which no factor makes 0
    meant = flow.logical_and(is_held, counts)
    outputs = [-_C.where(meant, picked, flow.zeros_like(picked)) * weight, weight]
    return outputs[: len(ctx.spec.outputs)]


@output_kernel("nll", 1)
def nll_weight(ctx: Context, inputs: Sequence[Tensor | None], attrs: Attrs) -> Tensor:
    """(any, target [...], weight [c]?) -> w of each row's target, 0 where ignored."""
    _, target, *weights = inputs
    assert target is not None
    counts = target != attrs["ignore_index"]
    weight = counts.to(getattr(flow, ctx.spec.outputs[0].dtype))
    if weights and weights[0] is not None:
        weight = weight * _C.gather(weights[0], target * counts.to(target.dtype), 0)
    return weight


@kernel("sparse_softmax_cross_entropy")
def sparse_softmax_cross_entropy(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """(prediction [..., c], label [...]) -> log sum exp(prediction) - prediction[label].

    Split classes: the maxima, the sums and the labels' logits are all-reduced.
    """
    x, label = inputs
    group = ctx.inner
    if group is None:
        return [_C.sparse_softmax_cross_entropy(x, label)]
    with flow.no_grad():
        held, is_held = inner.held_indices(label, ctx.offset(0, x.ndim - 1), x.shape[-1])
        hot = _C.one_hot(held, x.shape[-1], 1.0, 0.0).to(x.dtype)
        hot = hot * is_held.to(x.dtype).unsqueeze(-1)
        return inner.cross_entropy(x, hot, group)


@kernel("softmax_cross_entropy")
def softmax_cross_entropy(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(prediction [..., c], label [..., c]) -> out [...]."""
    return [_C.softmax_cross_entropy(*inputs)]


@kernel("smooth_l1_loss")
def smooth_l1_loss(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, target) -> out, elementwise."""
    return [_C.smooth_l1_loss(*inputs, beta=attrs["beta"], reduction="none")]


@kernel("kl_div_loss")
def kl_div_loss(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, target) -> out, elementwise."""
    return [_C.kl_div_loss(*inputs, log_target=attrs["log_target"], reduction="none")]


@kernel("binary_cross_entropy")
def binary_cross_entropy(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, target, weight?) -> out, elementwise."""
    x, target, *weight = inputs
    return [_C.binary_cross_entropy_loss(x, target, *weight, reduction="none")]


@kernel("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> list[Tensor]:
    """(input, target, weight?, pos_weight?) -> out, elementwise."""
    x, target, *rest = inputs
    positive = rest.pop() if attrs["has_pos_weight"] else None
    weight = rest.pop() if rest else None
    return [
        _C.binary_cross_entropy_with_logits_loss(
            x, target, weight=weight, pos_weight=positive, reduction="none"
        )
    ]


@kernel("binary_cross_entropy_with_logits_reduce_mean")
def binary_cross_entropy_with_logits_mean(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> list[Tensor]:
    """(input, target) -> out []: this shard's share of the mean over `count` elements."""
    each = _C.binary_cross_entropy_with_logits_loss(*inputs, reduction="none")
    return [each.sum() / attrs["count"]]


@kernel("ctc_loss")
def ctc_loss(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(log_probs, targets, input and target lengths) -> out, one per row."""
    given = attrs["max_target_length"], attrs["blank"], attrs["zero_infinity"], "none"
    return [_C.ctc_loss(*inputs, *given)]
