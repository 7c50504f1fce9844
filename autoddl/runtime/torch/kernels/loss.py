"""Losses. With split classes a shard accounts for the targets among its own classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit, Kernel
from .plain import of_attrs


def nll(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x [..., c], target [...], w [c]?) -> (-w x[target], w): 0 where ignored, NaN of no class."""
    x, target = inputs[:2]
    weight = nll_weight(ctx, inputs, attrs)
    counts = target != attrs["ignore_index"]
    unknown = counts & ((target < 0) | (target >= ctx.spec.inputs[0].shape[-1]))
    held, is_held = inner.held_indices(target, ctx.offset(0, x.ndim - 1), x.shape[-1])
    picked = torch.gather(x, -1, held.long().unsqueeze(-1)).squeeze(-1)
    # what is not meant may be -inf, of a class that is masked, which no factor makes 0
    picked = picked.masked_fill(~(is_held & counts), 0.0).masked_fill(unknown, float("nan"))
    return [-picked * weight, weight][: len(ctx.spec.outputs)]


def nll_weight(ctx: Context, inputs: Sequence[Tensor | None], attrs: Attrs) -> Tensor:
    """(any, target [...], weight [c]?) -> w of each row's target, 0 where ignored."""
    _, target, *weights = inputs
    assert target is not None
    counts = target != attrs["ignore_index"]
    weight = counts.to(getattr(torch, ctx.spec.outputs[0].dtype))
    if weights and weights[0] is not None:
        weight = weight * weights[0][target.long() * counts.long()]
    return weight


def sparse_softmax_cross_entropy(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """(prediction [..., c], label [...]) -> log sum exp(prediction) - prediction[label].

    Split classes: the maxima, the sums and the labels' logits are all-reduced.
    """
    x, label = inputs
    group = ctx.inner
    if group is None:
        each = F.cross_entropy(x.flatten(0, -2), label.flatten().long(), reduction="none")
        return [each.reshape(label.shape)]
    with torch.no_grad():
        held, is_held = inner.held_indices(label, ctx.offset(0, x.ndim - 1), x.shape[-1])
        hot = F.one_hot(held.long(), x.shape[-1]).to(x.dtype) * is_held.to(x.dtype).unsqueeze(-1)
        return inner.cross_entropy(x, hot, group)


def with_logits(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, target, weight?, pos_weight?) -> out, elementwise."""
    x, target, *rest = inputs
    positive = rest.pop() if attrs["has_pos_weight"] else None
    weight = rest.pop() if rest else None
    given = {"weight": weight, "pos_weight": positive, "reduction": "none"}
    return [F.binary_cross_entropy_with_logits(x, target, **given)]  # type: ignore[arg-type]


def _with_logits_mean(a: Attrs, x: Tensor, target: Tensor) -> Tensor:
    """This shard's share of the mean over `count` elements."""
    return F.binary_cross_entropy_with_logits(x, target, reduction="sum") / a["count"]


KERNELS: dict[str, Kernel] = {
    "nll": nll,
    "sparse_softmax_cross_entropy": sparse_softmax_cross_entropy,
    "binary_cross_entropy_with_logits": with_logits,
    **of_attrs(
        {
            "softmax_cross_entropy": lambda a, x, t: -(t * torch.log_softmax(x, -1)).sum(-1),
            "smooth_l1_loss": lambda a, x, t: F.smooth_l1_loss(
                x, t, reduction="none", beta=a["beta"]
            ),
            "kl_div_loss": lambda a, x, t: F.kl_div(
                x, t, reduction="none", log_target=a["log_target"]
            ),
            "binary_cross_entropy": lambda a, x, t, *w: F.binary_cross_entropy(
                x, t, *w, reduction="none"
            ),
            "binary_cross_entropy_with_logits_reduce_mean": _with_logits_mean,
            "ctc_loss": lambda a, *x: F.ctc_loss(*x, a["blank"], "none", a["zero_infinity"]),
        }
    ),
}
