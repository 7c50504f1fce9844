"""The graph's own operators, dropout, and submodules that run as they are.

Masks of dropout are equal on replicas and differ from shard to shard.
"""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit
from ..autograd import detached
from .registry import kernel


@kernel("fork", "identity")
def identity(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out."""
    return Explicit([detached(inputs[0])], lambda grads: grads)


@kernel("opaque")
def opaque(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """(args..., params...) -> results of the submodule's own forward pass."""
    assert ctx.opaque is not None, f"{ctx.name} comes without its submodule"
    return ctx.opaque(inputs, ctx.state.training, ctx.random_seed())


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
