"""Softmax over the last dim; if that is split, maxima and sums are all-reduced.

forward    m = max x over all shards;  s = all_reduce(sum exp(x - m))
backward   softmax:     dx = y (dy - all_reduce(sum dy y))
           log_softmax: dx = dy - exp(y) all_reduce(sum dy)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm.groups import Group
from ...kernel import Context, Explicit, Kernel


def softmax(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [torch.softmax(x, -1)]
    with torch.no_grad():
        shifted, total = shifted_and_total(x, group)
        y = torch.exp(shifted) / total

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [y * (dy - group.all_reduce((dy * y).sum(-1, True)))]

    return Explicit([y], vjp)


def log_softmax(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [torch.log_softmax(x, -1)]
    with torch.no_grad():
        shifted, total = shifted_and_total(x, group)
        y = shifted - torch.log(total)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [dy - torch.exp(y) * group.all_reduce(dy.sum(-1, True))]

    return Explicit([y], vjp)


def shifted_and_total(x: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """x - m and sum exp(x - m) over the last dim of the whole, m its maximum there."""
    shifted = x - group.all_max(x.amax(-1, True))
    return shifted, group.all_reduce(torch.exp(shifted).sum(-1, True))


KERNELS: dict[str, Kernel] = {"softmax": softmax, "log_softmax": log_softmax}
