"""Softmax over the last dim."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit, Kernel


def softmax(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [torch.softmax(x, -1)]
    with torch.no_grad():
        return inner.softmax(x, group)


def log_softmax(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """x -> y."""
    (x,) = inputs
    group = ctx.inner
    if group is None:
        return [torch.log_softmax(x, -1)]
    with torch.no_grad():
        return inner.log_softmax(x, group)


KERNELS: dict[str, Kernel] = {"softmax": softmax, "log_softmax": log_softmax}
