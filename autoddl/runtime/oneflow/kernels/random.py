"""Dropout, whose masks are equal on replicas and differ from shard to shard."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit
from ..detach import detached
from .registry import kernel


@kernel("dropout")
def dropout(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out: each element is zero with probability `rate`, others grow by 1 / (1 - rate)."""
    (x,) = inputs
    rate = attrs["rate"]
    if not ctx.state.training or rate == 0.0:
        return Explicit([detached(x)], lambda grads: grads)
    generator = flow.Generator(x.device.type)
    generator.manual_seed(ctx.random_seed())
    with flow.no_grad():
        drawn = flow.rand(*x.shape, generator=generator, device=x.device)
        kept = drawn >= rate
        del drawn
        factor = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        y = x * (kept.to(x.dtype) * factor)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [dy * (kept.to(dy.dtype) * factor)]

    return Explicit([y], vjp)
