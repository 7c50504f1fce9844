"""Reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit, Kernel
from .plain import of_attrs


def _dims(a: Attrs, x: Tensor, key: str = "axis") -> tuple[int, ...]:
    """The reduced dims; () stands for all."""
    return tuple(a[key]) or tuple(range(x.ndim))


def _reduction(function: Any) -> Any:
    return lambda a, x: function(x, _dims(a, x), a["keepdims"])


def _one_by_one(function: Any) -> Any:
    """A reduction by a function that takes one dim."""

    def run(a: Attrs, x: Tensor) -> Tensor:
        dims = sorted((d % x.ndim for d in _dims(a, x)), reverse=True)
        for dim in dims:
            x = function(x, dim, a["keepdims"])
        return x

    return run


def var(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y over the dims `dim`; the mean and the squares are all-reduced if one is split."""
    (x,) = inputs
    dims, unbiased, keep = tuple(attrs["dim"]), int(attrs["unbiased"]), attrs["keepdim"]
    if ctx.inner is None:
        return [torch.var(x, dims, correction=unbiased, keepdim=keep)]
    with torch.no_grad():
        return inner.variance(ctx, x, attrs)


def cumsum(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> running sums along `dim`, of x's dtype.

    If `dim` is split, those of a shard go on where the shards before it end.
    """
    (x,), dim = inputs, attrs["dim"]
    group = ctx.inner
    if group is None:
        return [torch.cumsum(x, dim, dtype=x.dtype)]
    with torch.no_grad():
        before = group.sum_before(x.sum(dim, True, dtype=x.dtype))
        y = torch.cumsum(x, dim, dtype=x.dtype) + before

    def gradients(dy: Tensor) -> list[Tensor | None]:
        after = group.sum_before(dy.sum(dim, True), after=True)
        return [torch.flip(torch.cumsum(torch.flip(dy, [dim]), dim), [dim]) + after]

    return inner.explicit(y, gradients)


def _order(a: Attrs, x: Tensor) -> Tensor:
    return torch.argsort(x, dim=-1, descending=a["direction"] == "DESCENDING", stable=True)


KERNELS: dict[str, Kernel] = {
    **of_attrs(
        {
            "reduce_sum": _reduction(lambda x, d, keep: torch.sum(x, d, keep, dtype=x.dtype)),
            "reduce_nansum": _reduction(torch.nansum),
            "reduce_max": _reduction(torch.amax),
            "reduce_min": _reduction(torch.amin),
            "reduce_any": _reduction(torch.any),
            "reduce_all": _reduction(torch.all),
            "reduce_prod": _one_by_one(torch.prod),
            # a shard of a split dim gives its share of the mean over `count` elements
            "reduce_mean": lambda a, x: torch.sum(x, _dims(a, x), a["keepdims"]) / a["count"],
            "argmax": lambda a, x: torch.argmax(x, -1),
            "median_with_indices": lambda a, x: torch.median(x, -1).values,
            "median_indices": lambda a, x: torch.median(x, -1).indices,
            "top_k": lambda a, x: torch.topk(x, a["k"], sorted=a["sorted"]).indices,
            "arg_sort": _order,
        }
    ),
    "var": var,
    "cumsum": cumsum,
}
