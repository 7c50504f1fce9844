"""Lookups by index. A shard of a split table gives zeros for what other shards hold."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Explicit
from ..experts import Places
from .registry import kernel, simple

simple(
    {
        "gather_nd": _C.gather_nd,
        "batch_gather": _C.batch_gather,
        "tensor_scatter_nd_update": _C.tensor_scatter_nd_update,
    }
)


@kernel("gather")
def gather(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(table, indices) -> out: dim `axis` of the table gives way to the dims of the indices."""
    table, indices = inputs
    axis = attrs["axis"] % table.ndim
    if not ctx.is_split(0, axis):
        return [_C.gather(table, indices, axis)]
    held, is_held = inner.held_indices(indices, ctx.offset(0, axis), table.shape[axis])
    found = _C.gather(table, held, axis)
    around = (*(1,) * axis, *indices.shape, *(1,) * (table.ndim - axis - 1))
    return [found * is_held.to(found.dtype).reshape(*around)]


@kernel("embedding")
def embedding(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(weight, indices) -> out; row `padding_idx` gets no gradient."""
    weight, indices = inputs
    return [_C.embedding(weight, indices, attrs["padding_idx"], attrs["scale_grad_by_freq"])]


@kernel("dim_gather")
def dim_gather(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, index) -> output of the index's shape, picked along `dim`."""
    return [_C.dim_gather(inputs[0], attrs["dim"], inputs[1])]


@kernel("one_hot")
def one_hot(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """indices -> out [..., depth]."""
    dtype = getattr(flow, attrs["dtype"])
    prefix = "floating" if dtype.is_floating_point else "integer"
    on, off = attrs[f"{prefix}_on_value"], attrs[f"{prefix}_off_value"]
    return [_C.one_hot(inputs[0], attrs["depth"], on, off).to(dtype)]


@kernel("searchsorted")
def searchsorted(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(borders, values) -> where each value belongs."""
    return [_C.searchsorted(*inputs, attrs["out_int32"], attrs["right"])]


@kernel("in_top_k")
def in_top_k(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(targets, predictions) -> whether each target is among the `k` largest."""
    return [_C.in_top_k(*inputs, attrs["k"])]


@kernel("dim_scatter_update", "dim_scatter_update_scalar")
def dim_scatter_update(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, index, src?) -> input with src, or `src_scalar`, at the index along `dim`."""
    x, index, *src = inputs
    return [_C.scatter(x, attrs["dim"], index, src[0] if src else attrs["src_scalar"])]


@kernel("dim_scatter_add")
def dim_scatter_add(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(input, index, src) -> input plus src at the index along `dim`."""
    x, index, src = inputs
    return [_C.scatter_add(x, attrs["dim"], index, src)]


@kernel("scatter_nd")
def scatter_nd(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(indices, updates) -> out of `shape`."""
    return [_C.scatternd(*inputs, attrs["shape"])]


@kernel("moe_dispatch")
def moe_dispatch(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(x, expert, position) -> the tokens at the places of this shard's experts."""
    x, expert, position = inputs
    shape, first = tuple(x.shape), ctx.output_offset(0, 0)

    def places() -> Places:
        return Places.of(expert, position, attrs["experts"], attrs["capacity"], first)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dy,) = grads
        assert dy is not None
        with flow.no_grad():
            found = places()
            dx = found.to_choice(dy, 0)
            for which in range(1, found.k):
                dx.add_(found.to_choice(dy, which))
            return [dx.reshape(*shape), None, None]

    with flow.no_grad():
        return Explicit([places().from_tokens(x)], vjp)


@kernel("moe_combine")
def moe_combine(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> Explicit:
    """(y, expert, position, weight) -> the tokens; a shard of the experts gives its summands."""
    y, expert, position, weight = inputs
    first = ctx.offset(0, 0)

    def places() -> Places:
        return Places.of(expert, position, y.shape[0], y.shape[2], first)

    def vjp(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        (dout,) = grads
        assert dout is not None
        with flow.no_grad():
            found = places()
            share = flow._C.gather(weight.reshape(-1), found.choice, 0).unsqueeze(-1)
            dy = found.from_tokens(dout).mul_(share)
            rows = dout.reshape(-1, dout.shape[-1])
            by_choice = [found.to_choice(y, n).mul_(rows).sum(dim=-1) for n in range(found.k)]
            return [dy, None, None, flow.stack(by_choice, dim=-1).reshape(*weight.shape)]

    with flow.no_grad():
        found, share = places(), weight.reshape(-1, weight.shape[-1])
        total = found.to_choice(y, 0).mul_(share[:, 0:1])
        for which in range(1, found.k):
            total.add_(found.to_choice(y, which).mul_(share[:, which : which + 1]))
        return Explicit([total.reshape(*weight.shape[:-1], y.shape[-1])], vjp)
