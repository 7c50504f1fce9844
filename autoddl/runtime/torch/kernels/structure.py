"""The graph's own operators, and what is random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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


def by_mode(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in training, in evaluation) -> out."""
    return identity(ctx, inputs[0 if ctx.state.training else -1 :], attrs)


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


def _drawn(fill: Callable[[Tensor, Attrs, Any], Tensor], shape: str = "shape") -> Kernel:
    """() -> numbers that `fill` puts into an empty tensor."""

    def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
        dtype = getattr(torch, attrs["dtype"])
        empty = torch.empty(attrs[shape], dtype=dtype, device=ctx.device)
        return [fill(empty, attrs, _generator(ctx, ctx.device))]

    return run


def bernoulli(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """probabilities -> ones and zeros; `p` is the probability of all if it is not -1."""
    x = inputs[0].detach()
    drawn = torch.rand(x.shape, generator=_generator(ctx, x.device), device=x.device)
    return [(drawn < (x if attrs["p"] < 0 else attrs["p"])).to(getattr(torch, attrs["dtype"]))]


def batched(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """inputs -> results of ATen's `function`, which takes the other attributes, too."""
    rest = {k: v for k, v in attrs.items() if k not in ("function", "tensors", "cores", "results")}
    given = dict(zip(attrs["tensors"], inputs, strict=True))
    found = getattr(torch.ops.aten, attrs["function"])(**given, **rest)
    return [found] if isinstance(found, Tensor) else [*found]


def fft(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(real, imaginary?) -> real, imaginary?"""
    x = torch.complex(*inputs) if len(inputs) > 1 else inputs[0]
    y = getattr(torch.fft, attrs["function"])(x, attrs["sizes"], attrs["dims"], attrs["norm"])
    return [part.contiguous() for part in (y.real, y.imag)] if y.is_complex() else [y]


def opaque(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(args..., params..., buffers...) -> results of a module's own forward pass."""
    first = len(inputs) - attrs["num_buffers"]
    given = [*inputs[:first], *(x.clone() for x in inputs[first:])]
    found = run_opaque(ctx, given)
    moved = ctx.state.training and not attrs["batchwise"]  # BatchNorm tells no version that it has
    ctx.updates.update({n: x for n, x in enumerate(given) if n >= first and (moved or x._version)})
    return [y.view_as(y) if any(y is x for x in given) else y for y in found]


KERNELS: dict[str, Kernel] = {
    "batched": batched,
    "fft": fft,
    "by_mode": by_mode,
    "fork": identity,
    "identity": identity,
    "stop_gradient": stop_gradient,
    "dropout": dropout,
    "bernoulli": bernoulli,
    "uniform": _drawn(lambda x, a, made: x.uniform_(a["from"], a["to"], generator=made)),
    "uniform_int": _drawn(lambda x, a, made: x.random_(a["from"], a["to"], generator=made)),
    "normal": _drawn(lambda x, a, made: x.normal_(a["mean"], a["std"], generator=made)),
    "exponential": _drawn(lambda x, a, g: x.exponential_(a["lambd"], generator=g), "out_shape"),
    "opaque": opaque,
}
