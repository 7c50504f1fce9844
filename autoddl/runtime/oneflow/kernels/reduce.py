"""Reductions."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit
from .registry import kernel


@kernel(
    "reduce_sum", "reduce_nansum", "reduce_max", "reduce_min", "reduce_prod", "reduce_any",
    "reduce_all",
)  # fmt: skip
def reduce(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y over the dims `axis`."""
    return [getattr(_C, ctx.spec.kind)(inputs[0], attrs["axis"], attrs["keepdims"])]


@kernel("reduce_mean")
def reduce_mean(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y; a shard of a split dim gives its share of the mean over `count` elements."""
    total = _C.reduce_sum(inputs[0], attrs["axis"], attrs["keepdims"])
    return [total / attrs["count"]]


@kernel("var")
def var(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Tensor] | Explicit:
    """x -> y over the dims `dim`; the mean and the squares are all-reduced if one is split."""
    (x,) = inputs
    if ctx.inner is not None:
        with flow.no_grad():
            return inner.variance(ctx, x, attrs)
    dims, unbiased = attrs["dim"], attrs["unbiased"]
    reduced = {d % x.ndim for d in dims}
    kept = [1 if d in reduced else n for d, n in enumerate(x.shape)]
    shape = kept if attrs["keepdim"] else [n for d, n in enumerate(kept) if d not in reduced]
    # OneFlow fails on a list of all dims
    chosen = None if len(reduced) == x.ndim else dims
    return [_C.var(x, dim=chosen, unbiased=unbiased).reshape(*shape)]


@kernel("argmax")
def argmax(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> index of the largest element of the last dim."""
    return [flow.argmax(inputs[0], dim=-1)]


@kernel("cumsum")
def cumsum(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor] | Explicit:
    """x -> running sums along `dim`, of x's dtype, where the function widens integers first.

    If `dim` is split, those of a shard go on where the shards before it end.
    """
    (x,), dim = inputs, attrs["dim"]
    group = ctx.inner
    if group is None:
        return [flow.cumsum(x, dim).to(x.dtype)]
    with flow.no_grad():
        before = group.sum_before(x.sum(dim=dim, keepdim=True).to(x.dtype))
        y = flow.cumsum(x, dim).to(x.dtype) + before

    def gradients(dy: Tensor) -> list[Tensor | None]:
        after = group.sum_before(dy.sum(dim=dim, keepdim=True), after=True)
        return [flow.flip(flow.cumsum(flow.flip(dy, [dim]), dim), [dim]) + after]

    return inner.explicit(y, gradients)


@kernel("median_with_indices", "median_indices")
def median(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> the medians of the last dim, or where they are."""
    return [_C.median(inputs[0], -1, False)[ctx.spec.kind == "median_indices"]]


@kernel("top_k")
def top_k(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> indices of the `k` largest of the last dim."""
    return [_C.topk(inputs[0], attrs["k"], sorted=attrs["sorted"])[1]]


@kernel("arg_sort")
def arg_sort(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> indices that sort the last dim in `direction`."""
    return [_C.arg_sort(inputs[0], attrs["direction"])]
