"""Normalisation. Where dims are split, `comm.inner` has what runs, else ATen's own operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit, Kernel
from .plain import of_attrs


def layer_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """(x, gamma?, beta?) -> y over the dims from `begin_norm_axis`."""
    if ctx.inner is not None:
        with torch.no_grad():
            return inner.layer_norm(ctx, inputs, attrs)
    x, rest = inputs[0], list(inputs[1:])
    gamma = rest.pop(0) if attrs.get("scale", len(rest) > 0) else None
    beta = rest.pop(0) if rest else None
    dims, eps = x.shape[attrs["begin_norm_axis"] % x.ndim :], attrs["epsilon"]
    if gamma is None or gamma.dtype is x.dtype:
        return [F.layer_norm(x, dims, gamma, beta, eps)]
    # ATen's kernel of both precisions adds up the gradients of gamma and beta in that of x
    y = F.layer_norm(x, dims, eps=eps) * gamma
    return [(y if beta is None else y + beta).to(x.dtype)]


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
    front = x if axis == 1 else x.movedim(axis, 1)  # a view is one more operator, back as well
    if not (attrs["training"] and ctx.state.training) and moving:
        y = F.batch_norm(front, *moving, gamma, beta, False, 0.0, attrs["epsilon"])
    elif ctx.inner is None:
        y = _on_one_shard(ctx, front, moving, gamma, beta, attrs)
    else:
        with torch.no_grad():
            return inner.batch_norm(ctx, inputs, attrs)
    return [y if axis == 1 else y.movedim(1, axis)]


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
    shape, own = tuple(a["normalized_shape"]), [w for w in weight if w.dtype is x.dtype]
    y = F.rms_norm(x, shape, *own, eps=a["epsilon"])
    return y if len(own) == len(weight) else (y * weight[0]).to(x.dtype)


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
