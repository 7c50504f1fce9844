"""The graph's own operators, random draws, and submodules that run as they are.

What is drawn is equal on replicas and differs from shard to shard; it follows from the run's seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit, run_opaque
from ..autograd import detached
from .registry import kernel


@kernel("fork", "identity")
def identity(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out."""
    return Explicit([detached(inputs[0])], lambda grads: grads)


@kernel("stop_gradient")
def stop_gradient(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out, without a gradient."""
    return [detached(inputs[0])]


@kernel("by_mode")
def by_mode(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(in training, in evaluation) -> out."""
    read = inputs[0 if ctx.state.training else -1]
    return Explicit([detached(read)], lambda grads: [grads[0], None][: len(inputs)])


@kernel("opaque")
def opaque(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor]:
    """(args..., params...) -> results of the submodule's own forward pass."""
    return run_opaque(ctx, inputs)


def generator(ctx: Context, device: str) -> flow.Generator:
    """Of the operator's shard; equal on its replicas."""
    made = flow.Generator(device)
    made.manual_seed(ctx.random_seed())
    return made


@kernel("dropout")
def dropout(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out: each element is zero with probability `rate`, others grow by 1 / (1 - rate)."""
    (x,) = inputs
    rate = attrs["rate"]
    if not ctx.state.training or rate == 0.0:
        return Explicit([detached(x)], lambda grads: grads)
    with flow.no_grad():
        drawn = flow.rand(*x.shape, generator=generator(ctx, x.device.type), device=x.device)
        kept = drawn >= rate
        del drawn
        factor = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        y = x * (kept.to(x.dtype) * factor)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [dy * (kept.to(dy.dtype) * factor)]

    return Explicit([y], vjp)


@kernel("uniform", "uniform_int", "normal", "exponential", "randperm")
def draw(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> numbers of `shape`; of `out_shape`, or `n`."""
    how = {"generator": generator(ctx, ctx.device), "device": ctx.device}
    if ctx.spec.kind == "randperm":
        return [flow.randperm(attrs["n"], **how).to(flow.int32)]
    if ctx.spec.kind == "exponential":
        empty = flow.empty(attrs["out_shape"], device=ctx.device)
        drawn = _C.exponential_(empty, attrs["lambd"], how["generator"])
    elif ctx.spec.kind == "uniform_int":
        drawn = flow.randint(attrs["from"], attrs["to"], attrs["shape"], **how)
    elif ctx.spec.kind == "uniform":
        spread = attrs["to"] - attrs["from"]
        drawn = flow.rand(attrs["shape"], **how) * spread + attrs["from"]
    else:
        drawn = flow.randn(attrs["shape"], **how) * attrs["std"] + attrs["mean"]
    return [drawn.to(getattr(flow, attrs["dtype"]))]


@kernel("bernoulli")
def bernoulli(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """probabilities -> ones and zeros; `p` is the probability of all if it is not -1."""
    with flow.no_grad():
        x = detached(inputs[0])
        drawn = flow.rand(x.shape, generator=generator(ctx, x.device.type), device=x.device)
        chances = x if attrs["p"] < 0 else attrs["p"]
        return [(drawn < chances).to(getattr(flow, attrs["dtype"]))]
