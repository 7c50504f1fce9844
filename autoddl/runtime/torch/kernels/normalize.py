"""Normalisation. Statistics over split dims are all-reduced: means first, then centred squares.

    xhat = (x - mean) rstd;  y = xhat gamma + beta;  h = dy gamma
    dx = rstd (h - all_reduce(sum h) / n - xhat all_reduce(sum h xhat) / n)

Where nothing is split, ATen's own operators run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm.groups import Group
from ...kernel import Context, Explicit, Kernel
from .plain import of_attrs


@dataclass
class _Standardised:
    """xhat, and what it takes to go back through it. `dims` are reduced, over `count` elements."""

    dims: tuple[int, ...]
    count: int
    group: Group
    mean: Tensor
    variance: Tensor
    rstd: Tensor
    xhat: Tensor

    @staticmethod
    def of(
        x: Tensor, dims: tuple[int, ...], count: int, epsilon: float, group: Group
    ) -> _Standardised:
        mean = group.all_reduce(x.sum(dims, True)) / count
        centred = x - mean
        variance = group.all_reduce((centred * centred).sum(dims, True)) / count
        rstd = torch.rsqrt(variance + epsilon)
        return _Standardised(dims, count, group, mean, variance, rstd, centred * rstd)

    def gradient(self, h: Tensor) -> Tensor:
        """dx from the gradient `h` of xhat."""
        sums = torch.stack([h.sum(self.dims, True), (h * self.xhat).sum(self.dims, True)])
        sums = self.group.all_reduce(sums) / self.count
        return self.rstd * (h - sums[0] - self.xhat * sums[1])


def layer_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """(x, gamma?, beta?) -> y over the dims from `begin_norm_axis`."""
    x, rest = inputs[0], list(inputs[1:])
    gamma = rest.pop(0) if attrs.get("scale", len(rest) > 0) else None
    beta = rest.pop(0) if rest else None
    shape = ctx.spec.inputs[0].shape
    begin = attrs["begin_norm_axis"] % len(shape)
    if ctx.inner is None:
        return [F.layer_norm(x, x.shape[begin:], gamma, beta, attrs["epsilon"])]
    lead = tuple(range(begin))
    with torch.no_grad():
        dims = tuple(range(begin, len(shape)))
        s = _Standardised.of(x, dims, math.prod(shape[begin:]), attrs["epsilon"], ctx.inner)
        y = s.xhat if gamma is None else s.xhat * gamma
        y = y if beta is None else y + beta

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        found: list[Tensor | None] = [s.gradient(dy if gamma is None else dy * gamma)]
        if gamma is not None:
            found.append((dy * s.xhat).sum(lead) if lead else dy * s.xhat)
        if beta is not None:
            found.append(dy.sum(lead) if lead else dy)
        return found

    return Explicit([y], vjp)


def normalization(
    ctx: Context, inputs: Sequence[Tensor], attrs: Attrs
) -> Sequence[Tensor] | Explicit:
    """(x, moving_mean, moving_variance, gamma, beta) -> y, BatchNorm over all dims but `axis`.

    The moving statistics may be absent. `momentum` is what they keep of their old values; the
    moving variance takes the unbiased one. With the attribute `statistics` "shard" the rows of this
    shard are all, and its moving statistics are its own (`ModelState.apart`).
    """
    x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
    moving = inputs[1:3] if len(inputs) == 5 else None
    axis = attrs["axis"] % x.ndim
    if not (attrs["training"] and ctx.state.training) and moving:
        front = x.movedim(axis, 1)
        y = F.batch_norm(front, *moving, gamma, beta, False, 0.0, attrs["epsilon"])
        return [y.movedim(1, axis)]
    if ctx.inner is None:
        return [_on_one_shard(ctx, x.movedim(axis, 1), moving, gamma, beta, attrs).movedim(1, axis)]
    shape = ctx.spec.inputs[0].shape
    dims = tuple(d for d in range(len(shape)) if d != axis)
    count = math.prod(shape[d] for d in dims)
    # a channel split leaves `count` alone: the reduced dims are the same on every shard
    with torch.no_grad():
        s = _Standardised.of(x, dims, count, attrs["epsilon"], ctx.inner)
        around = s.mean.shape
        y = s.xhat * gamma.reshape(around) + beta.reshape(around)
        if moving:
            keep = attrs["momentum"]
            new = s.mean, s.variance * (count / max(count - 1, 1))
            for index, (old, value) in enumerate(zip(moving, new, strict=True)):
                ctx.updates[1 + index] = old * keep + value.reshape(-1) * (1 - keep)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        dx = s.gradient(dy * gamma.reshape(around))
        none = [None] * (len(inputs) - 3)
        return [dx, *none, (dy * s.xhat).sum(dims), dy.sum(dims)]

    return Explicit([y], vjp)


def _on_one_shard(
    ctx: Context,
    x: Tensor,
    moving: Sequence[Tensor] | None,
    gamma: Tensor,
    beta: Tensor,
    attrs: Attrs,
) -> Tensor:
    """ATen's operator on this shard, whose channels are dim 1."""
    fresh = [value.detach().clone() for value in moving] if moving else [None, None]
    y = F.batch_norm(x, *fresh, gamma, beta, True, 1 - attrs["momentum"], attrs["epsilon"])
    if moving:
        ctx.updates[1], ctx.updates[2] = fresh
    return y


def _rms_norm(a: Attrs, x: Tensor, *weight: Tensor) -> Tensor:
    return F.rms_norm(x, tuple(a["normalized_shape"]), *weight, eps=a["epsilon"])


KERNELS: dict[str, Kernel] = {
    "layer_norm": layer_norm,
    "normalization": normalization,
    **of_attrs(
        {
            "rms_norm": _rms_norm,
            "l2_normalize": lambda a, x: (
                x * torch.rsqrt((x * x).sum(a["axis"], True).clamp(min=a["epsilon"]))
            ),
        }
    ),
}
