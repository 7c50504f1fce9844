"""Tokens to experts and back, with gradients that look places up as the results do."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit
from ..experts import Places, combined
from .registry import kernel


@kernel("moe_dispatch")
def moe_dispatch(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, expert, position) -> the tokens at the places of this shard's experts."""
    x, expert, position = inputs
    shape, first = tuple(x.shape), ctx.output_offset(0, 0)

    def places() -> Places:
        return Places.of(expert, position, attrs["experts"], attrs["capacity"], first)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        with flow.no_grad():
            found = places()
            dx = found.to_choice(dy, 0)
            for which in range(1, found.k):
                dx = dx + found.to_choice(dy, which)
            return [dx.reshape(*shape), None, None]

    with flow.no_grad():
        return Explicit([places().from_tokens(x)], vjp)


@kernel("moe_combine")
def moe_combine(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(y, expert, position, weight) -> the tokens; a shard of the experts gives its summands."""
    y, expert, position, weight = inputs
    first = ctx.offset(0, 0)

    def places() -> Places:
        return Places.of(expert, position, y.shape[0], y.shape[2], first)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dout,) = grads
        assert dout is not None
        with flow.no_grad():
            found = places()
            share = flow._C.gather(weight.reshape(-1), found.choice, 0).unsqueeze(-1)
            dy = found.from_tokens(dout) * share
            rows = dout.reshape(-1, dout.shape[-1])
            by_choice = [(found.to_choice(y, n) * rows).sum(dim=-1) for n in range(found.k)]
            return [dy, None, None, flow.stack(by_choice, dim=-1).reshape(*weight.shape)]

    with flow.no_grad():
        return Explicit([combined(y, weight, places())], vjp)
