"""The graph's own operators, and submodules that run as they are."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit
from ..detach import detached
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
