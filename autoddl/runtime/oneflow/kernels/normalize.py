"""Normalisation. Statistics over split dims are all-reduced: means first, then centred squares.

    xhat = (x - mean) rstd;  y = xhat gamma + beta;  h = dy gamma
    dx = rstd (h - all_reduce(sum h) / n - xhat all_reduce(sum h xhat) / n)

With split dims these are the statistics of the whole, so nothing differs from one device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm.groups import Group
from ...kernel import Context, Explicit
from .registry import kernel


@dataclass
class _Standardised:
    """xhat, and what it takes to go back through it. `dims` are reduced, over `count` elements."""

    dims: tuple[int, ...]
    count: int
    group: Group | None
    mean: Tensor
    variance: Tensor
    rstd: Tensor
    xhat: Tensor

    def gradient(self, h: Tensor) -> Tensor:
        """dx from the gradient `h` of xhat."""
        sums = flow.stack([h.sum(self.dims, True), (h * self.xhat).sum(self.dims, True)])
        sums = _all_reduce(self.group, sums) / self.count
        return self.rstd * (h - sums[0] - self.xhat * sums[1])


def _standardise(
    x: Tensor, dims: tuple[int, ...], count: int, epsilon: float, group: Group | None
) -> _Standardised:
    mean = _all_reduce(group, x.sum(dims, True)) / count
    centred = x - mean
    variance = _all_reduce(group, (centred * centred).sum(dims, True)) / count
    rstd = flow.rsqrt(variance + epsilon)
    return _Standardised(dims, count, group, mean, variance, rstd, centred * rstd)


def _all_reduce(group: Group | None, x: Tensor) -> Tensor:
    return group.all_reduce(x) if group else x


@kernel("layer_norm")
def layer_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, gamma?, beta?) -> y over the dims from `begin_norm_axis`.

    Written out, since OneFlow's fused operator has no CPU kernel.
    """
    x, rest = inputs[0], list(inputs[1:])
    gamma = rest.pop(0) if attrs.get("scale", len(rest) > 0) else None
    beta = rest.pop(0) if rest else None
    shape = ctx.spec.inputs[0].shape
    begin = attrs["begin_norm_axis"] % len(shape)
    lead = tuple(range(attrs["begin_params_axis"] % len(shape)))
    with flow.no_grad():
        dims = tuple(range(begin, len(shape)))
        s = _standardise(x, dims, math.prod(shape[begin:]), attrs["epsilon"], ctx.inner)
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


@kernel("normalization")
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
        return [_with_moving_statistics(x, moving, gamma, beta, axis, attrs["epsilon"])]
    if ctx.inner is None:
        return [_on_one_shard(ctx, x, moving, gamma, beta, attrs)]
    shape = ctx.spec.inputs[0].shape
    dims = tuple(d for d in range(len(shape)) if d != axis)
    count = math.prod(shape[d] for d in dims)
    # a channel split leaves `count` alone: the reduced dims are the same on every shard
    with flow.no_grad():
        s = _standardise(x, dims, count, attrs["epsilon"], ctx.inner)
        around = s.mean.shape
        y = s.xhat * gamma.reshape(*around) + beta.reshape(*around)
        if moving:
            keep = attrs["momentum"]
            new = s.mean, s.variance * (count / max(count - 1, 1))
            for index, (old, value) in enumerate(zip(moving, new, strict=True)):
                ctx.updates[1 + index] = old * keep + value.reshape(-1) * (1 - keep)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        dx = s.gradient(dy * gamma.reshape(*around))
        none = [None] * (len(inputs) - 3)
        return [dx, *none, (dy * s.xhat).sum(dims), dy.sum(dims)]

    return Explicit([y], vjp)


def _with_moving_statistics(
    x: Tensor, moving: Sequence[Tensor], gamma: Tensor, beta: Tensor, axis: int, epsilon: float
) -> Tensor:
    around = [x.shape[d] if d == axis else 1 for d in range(x.ndim)]
    mean, variance = moving
    scale = flow.rsqrt(variance + epsilon) * gamma
    return x * scale.reshape(*around) + (beta - mean * scale).reshape(*around)


def _on_one_shard(
    ctx: Context,
    x: Tensor,
    moving: Sequence[Tensor] | None,
    gamma: Tensor,
    beta: Tensor,
    attrs: Attrs,
) -> Tensor:
    """OneFlow's operator on this shard."""
    fresh = [value.clone() for value in moving] if moving else [None, None]
    y = _C.normalization(
        x,
        *fresh,
        gamma,
        beta,
        axis=attrs["axis"],
        epsilon=attrs["epsilon"],
        momentum=1 - attrs["momentum"],
        is_training=True,
    )
    if moving:
        ctx.updates[1], ctx.updates[2] = fresh
    return y


@kernel("rms_norm")
def rms_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(x, weight?) -> x / sqrt(mean x^2 + epsilon) over the dims of `normalized_shape`."""
    x, *weight = inputs
    dims = tuple(range(x.ndim - len(attrs["normalized_shape"]), x.ndim))
    y = x * flow.rsqrt((x * x).mean(dims, True) + attrs["epsilon"])
    return [y * weight[0] if weight else y]


@kernel("l2_normalize")
def l2_normalize(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> x divided by its length along `axis`."""
    return [_C.normalize(inputs[0], 2.0, attrs["axis"], attrs["epsilon"])]
