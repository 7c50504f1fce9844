"""The graph's own operators, and random draws.

What is drawn is equal on replicas and differs from shard to shard; it follows from the run's seed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Explicit, Kernel


def identity(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out."""
    return Explicit([inputs[0].detach()], lambda grads: grads)


def stop_gradient(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out, without a gradient."""
    return [inputs[0].detach()]


def by_mode(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(in training, in evaluation) -> out."""
    chosen = inputs[0 if ctx.state.training else 1]
    return Explicit([chosen.detach()], lambda grads: [grads[0], None])


def _generator(ctx: Context, device: torch.device | str) -> torch.Generator:
    """Of the operator's shard; equal on its replicas."""
    made = torch.Generator(device)
    made.manual_seed(ctx.random_seed())
    return made


def dropout(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """in -> out: each element is zero with probability `rate`, others grow by 1 / (1 - rate)."""
    (x,) = inputs
    rate = attrs["rate"]
    if not ctx.state.training or rate == 0.0:
        return Explicit([x.detach()], lambda grads: grads)
    with torch.no_grad():
        drawn = torch.rand(x.shape, generator=_generator(ctx, x.device), device=x.device)
        kept = drawn >= rate
        del drawn
        factor = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
        y = x * kept * factor

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return [dy * kept * factor]

    return Explicit([y], vjp)


def draw(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> numbers of `shape`; of `out_shape`, or `n`."""
    kind, generator = ctx.spec.kind, _generator(ctx, ctx.device)
    if kind == "randperm":
        drawn = torch.randperm(attrs["n"], generator=generator, device=ctx.device)
        return [drawn.to(getattr(torch, ctx.spec.outputs[0].dtype))]
    shape = tuple(attrs["out_shape" if kind == "exponential" else "shape"])
    empty = torch.empty(shape, device=ctx.device)
    if kind == "exponential":
        drawn = empty.exponential_(attrs["lambd"], generator=generator)
    elif kind == "uniform_int":
        drawn = torch.randint(
            attrs["from"], attrs["to"], shape, generator=generator, device=ctx.device
        )
    elif kind == "uniform":
        drawn = empty.uniform_(attrs["from"], attrs["to"], generator=generator)
    else:
        drawn = empty.normal_(attrs["mean"], attrs["std"], generator=generator)
    return [drawn.to(getattr(torch, attrs["dtype"]))]


def bernoulli(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """probabilities -> ones and zeros; `p` is the probability of all if it is not -1."""
    x = inputs[0].detach()
    drawn = torch.rand(x.shape, generator=_generator(ctx, x.device), device=x.device)
    return [(drawn < (x if attrs["p"] < 0 else attrs["p"])).to(getattr(torch, attrs["dtype"]))]


KERNELS: dict[str, Kernel] = {
    "fork": identity,
    "identity": identity,
    "stop_gradient": stop_gradient,
    "by_mode": by_mode,
    "dropout": dropout,
    "bernoulli": bernoulli,
    **dict.fromkeys(("uniform", "uniform_int", "normal", "exponential", "randperm"), draw),
}
