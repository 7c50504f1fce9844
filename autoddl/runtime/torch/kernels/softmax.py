"""Softmax over the last dim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit, Kernel


def _softmax(whole: Callable[..., Tensor], split: Callable[..., Any]) -> Kernel:
    """x -> y, of a whole dim, and of one that is split."""

    def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
        if ctx.inner is None:
            return [whole(inputs[0], -1)]
        with torch.no_grad():
            return split(inputs[0], ctx.inner)

    return run


KERNELS: dict[str, Kernel] = {
    "softmax": _softmax(torch.softmax, inner.softmax),
    "log_softmax": _softmax(torch.log_softmax, inner.log_softmax),
}
