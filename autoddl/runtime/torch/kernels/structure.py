"""The graph's own operators, and dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Kernel, run_opaque


def identity(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out."""
    return [inputs[0].view_as(inputs[0])]


def stop_gradient(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out, without a gradient."""
    return [inputs[0].detach()]


def _generator(ctx: Context, device: torch.device | str) -> torch.Generator:
    """Of the operator's shard; equal on its replicas, and follows from the run's seed."""
    made = torch.Generator(device)
    made.manual_seed(ctx.random_seed())
    return made


def dropout(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out: each element is zero with probability `rate`, others grow by 1 / (1 - rate)."""
    (x,) = inputs
    rate = attrs["rate"]
    if not ctx.state.training or rate == 0.0:
        return [x.view_as(x)]
    drawn = torch.rand(x.shape, generator=_generator(ctx, x.device), device=x.device)
    kept = drawn >= rate
    del drawn
    return [x * kept * (1.0 / (1.0 - rate) if rate < 1.0 else 0.0)]


def opaque(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(args..., params..., buffers...) -> results of a module's own forward pass."""
    first = len(inputs) - attrs["num_buffers"]
    given = [*inputs[:first], *(x.clone() for x in inputs[first:])]
    found = run_opaque(ctx, given)
    ctx.updates.update({n: x for n, x in enumerate(given) if n >= first and x._version})
    return [y.view_as(y) if any(y is x for x in given) else y for y in found]


KERNELS: dict[str, Kernel] = {
    "fork": identity,
    "identity": identity,
    "stop_gradient": stop_gradient,
    "dropout": dropout,
    "opaque": opaque,
}
