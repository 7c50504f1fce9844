"""Operators over split dims: their collectives run inside, and their derivatives are written out.

    softmax           m = max x over all shards;  s = all_reduce(sum exp(x - m))
                      y = exp(x - m) / s
                      dx = y (dy - all_reduce(sum dy y))
    log_softmax       y = x - m - log s;  dx = dy - exp(y) all_reduce(sum dy)
    cross-entropy     y = log s - all_reduce((x - m)[label]);  dx = (softmax(x) - one_hot(label)) dy
    normalisation     xhat = (x - mean) rstd;  y = xhat gamma + beta;  h = dy gamma
                      dx = rstd (h - all_reduce(sum h) / n - xhat all_reduce(sum h xhat) / n)
    variance          y = all_reduce(sum (x - mean)^2) / (n - unbiased)
                      dx = 2 (x - mean) / (n - unbiased) dy

These are the values of the whole, so nothing differs from one device. Kernels of each back end call
them, within its `no_grad`, with its own tensors: only methods that these share are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...sbp.signature import Attrs
from ..backend import Tensor, dtype_of
from ..kernel import Context, Explicit
from .groups import Group

Change = Callable[[Tensor], Tensor]


def explicit(y: Tensor, gradients: Callable[[Tensor], Sequence[Tensor | None]]) -> Explicit:
    """One output, and the gradients of all inputs from its own."""

    def vjp(grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        return gradients(dy)

    return Explicit([y], vjp)


def softmax(x: Tensor, group: Group) -> Explicit:
    """Over the last dim."""
    shifted, total = _shifted_and_total(x, group)
    y = shifted.exp() / total
    return explicit(y, lambda dy: [y * (dy - group.all_reduce((dy * y).sum(-1, True)))])


def log_softmax(x: Tensor, group: Group) -> Explicit:
    """Over the last dim."""
    shifted, total = _shifted_and_total(x, group)
    y = shifted - total.log()
    return explicit(y, lambda dy: [dy - y.exp() * group.all_reduce(dy.sum(-1, True))])


def cross_entropy(x: Tensor, hot: Tensor, group: Group) -> Explicit:
    """(logits [..., c], one-hot labels [..., c], 0 in all shards but one) -> out [...]."""
    shifted, total = _shifted_and_total(x, group)
    own = (hot * shifted.masked_fill(hot == 0, 0.0)).sum(-1)  # as 0 times -inf is no number
    out = total.log().squeeze(-1) - group.all_reduce(own)
    slope = shifted.exp() / total - hot
    return explicit(out, lambda dy: [slope * dy.unsqueeze(-1), None])


def _shifted_and_total(x: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """x - m and sum exp(x - m) over the last dim of the whole, m its maximum there."""
    most = x.amax(-1, True) if x.shape[-1] else x.sum(-1, True) - math.inf
    shifted = x - group.all_max(most)
    return shifted, group.all_reduce(shifted.exp().sum(-1, True))


def rows_of_experts(ctx: Context, ends: Sequence[int], rows: int, experts: int) -> list[int]:
    """Where the rows of this shard's experts end among its own rows, and before where they begin.

    ends: of all experts' rows in all; see the rule of `grouped_matmul`
    """
    row, first = ctx.offset(0, 0), ctx.offset(1, 0)
    bounds = [min(max(end - row, 0), rows) for end in (0, *ends)]
    return bounds[first : first + experts + 1]


def held_indices(indices: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Indices into a shard that holds [start, start + count), 0 for others; and which it holds."""
    local = indices - start
    is_held = (local >= 0) & (local < count)
    return local * is_held.to(local.dtype), is_held


def variance(ctx: Context, x: Tensor, attrs: Attrs) -> Explicit:
    """Over the dims `dim`, some of which are split."""
    assert ctx.inner is not None
    dims, reduced = tuple(attrs["dim"]), {d % x.ndim for d in attrs["dim"]}
    kept = [1 if d in reduced else n for d, n in enumerate(x.shape)]
    shape = kept if attrs["keepdim"] else [n for d, n in enumerate(kept) if d not in reduced]
    count = math.prod(ctx.spec.inputs[0].shape[d] for d in dims)
    centred = x - ctx.inner.all_reduce(x.sum(dims, True)) / count
    total = ctx.inner.all_reduce((centred * centred).sum(dims, True))
    divisor = count - attrs["unbiased"]
    y = (total / divisor).reshape(shape)
    return explicit(y, lambda dy: [centred * (dy.reshape(kept) * (2.0 / divisor))])


@dataclass
class _Standardised:
    """xhat, and what it takes to go back through it. `dims` are reduced, over `count` elements.

    group: of the ranks that have parts of them; None where nothing is split
    """

    dims: tuple[int, ...]
    count: int
    group: Group | None
    mean: Tensor
    variance: Tensor
    rstd: Tensor
    xhat: Tensor

    def gradient(self, h: Tensor) -> Tensor:
        """dx from the gradient `h` of xhat; both sums travel together."""
        sums = h.sum(self.dims, True), (h * self.xhat).sum(self.dims, True)
        if self.group is not None:
            n = math.prod(sums[0].shape)
            both = self.group.backend.cat([total.reshape(-1) for total in sums], 0)
            both = self.group.all_reduce(both)
            parts = both.narrow(0, 0, n), both.narrow(0, n, n)
            sums = parts[0].reshape(sums[0].shape), parts[1].reshape(sums[1].shape)
        return self.rstd * (h - sums[0] / self.count - self.xhat * (sums[1] / self.count))


def _standardised(
    x: Tensor, dims: tuple[int, ...], count: int, epsilon: float, group: Group | None
) -> _Standardised:
    def total(parts: Tensor) -> Tensor:
        found = parts.sum(dims, True)
        return group.all_reduce(found) if group else found

    mean = total(x) / count
    centred = x - mean
    variance = total(centred * centred) / count
    rstd = (variance + epsilon).rsqrt()
    return _Standardised(dims, count, group, mean, variance, rstd, centred * rstd)


def layer_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, gamma?, beta?) -> y over the dims from `begin_norm_axis`, which need not be split."""
    x, rest = inputs[0], list(inputs[1:])
    gamma = rest.pop(0) if attrs.get("scale", len(rest) > 0) else None
    beta = rest.pop(0) if rest else None
    shape = ctx.spec.inputs[0].shape
    begin = attrs["begin_norm_axis"] % len(shape)
    lead = tuple(range(attrs["begin_params_axis"] % len(shape)))
    dims = tuple(range(begin, len(shape)))
    wide, narrow = _precisions(ctx, x)
    count = math.prod(shape[begin:])
    s = _standardised(wide(x), dims, count, attrs["epsilon"], ctx.inner)
    gamma = gamma if gamma is None else gamma.to(s.xhat.dtype)
    y = s.xhat if gamma is None else s.xhat * gamma

    def gradients(dy: Tensor) -> list[Tensor | None]:
        dy = wide(dy)
        found = [s.gradient(dy if gamma is None else dy * gamma)]
        if gamma is not None:
            found.append((dy * s.xhat).sum(lead) if lead else dy * s.xhat)
        if beta is not None:
            found.append(dy.sum(lead) if lead else dy)
        return [dx.to(given.dtype) for dx, given in zip(found, inputs, strict=True)]

    return explicit(narrow(y if beta is None else y + beta.to(y.dtype)), gradients)


def _precisions(ctx: Context, x: Tensor) -> tuple[Change, Change]:
    """To the precision in which `x` is standardised, float32 at least, and back to its own."""
    own = dtype_of(x)
    if own not in ("float16", "bfloat16") or ctx.inner is None:
        return lambda x: x, lambda x: x
    cast = ctx.inner.backend.cast
    return lambda x: cast(x, "float32"), lambda x: cast(x, own)


def batch_norm(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, moving_mean?, moving_variance?, gamma, beta) -> y over all dims but `axis`."""
    x, gamma, beta = inputs[0], inputs[-2], inputs[-1]
    shape, axis = ctx.spec.inputs[0].shape, attrs["axis"] % x.ndim
    dims = tuple(d for d in range(len(shape)) if d != axis)
    # a channel split leaves `count` alone: the reduced dims are the same on every shard
    count = math.prod(shape[d] for d in dims)
    wide, narrow = _precisions(ctx, x)
    s = _standardised(wide(x), dims, count, attrs["epsilon"], ctx.inner)
    around = s.mean.shape
    if len(inputs) == 5:
        keep = attrs["momentum"]
        new = s.mean, s.variance * (count / max(count - 1, 1))
        for index, (old, value) in enumerate(zip(inputs[1:3], new, strict=True)):
            ctx.updates[1 + index] = old * keep + value.reshape(-1) * (1 - keep)

    def gradients(dy: Tensor) -> list[Tensor | None]:
        dy = wide(dy)
        dx = narrow(s.gradient(dy * gamma.reshape(around)))
        return [dx, *[None] * (len(inputs) - 3), (dy * s.xhat).sum(dims), dy.sum(dims)]

    return explicit(narrow(s.xhat * gamma.reshape(around) + beta.reshape(around)), gradients)
