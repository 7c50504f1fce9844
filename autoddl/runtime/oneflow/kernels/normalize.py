"""Normalisation. Where dims are split, `comm.inner` has what runs."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit
from .registry import kernel


@kernel("layer_norm")
def layer_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, gamma?, beta?) -> y over the dims from `begin_norm_axis`.

    Written out in any case, since OneFlow's fused operator has no CPU kernel.
    """
    with flow.no_grad():
        return inner.layer_norm(ctx, inputs, attrs)


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
    with flow.no_grad():
        return inner.batch_norm(ctx, inputs, attrs)


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
