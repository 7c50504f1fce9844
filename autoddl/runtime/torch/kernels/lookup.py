"""Lookups by index. A shard of a split table gives zeros for what other shards hold."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ....sbp.signature import Attrs
from ...comm import inner
from ...kernel import Context, Kernel
from .plain import of_attrs, of_inputs


def gather(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(table, indices) -> out: dim `axis` of the table gives way to the dims of the indices."""
    table, indices = inputs
    axis = attrs["axis"] % table.ndim
    if not ctx.is_split(0, axis):
        return [_picked(table, indices, axis)]
    held, is_held = inner.held_indices(indices, ctx.offset(0, axis), table.shape[axis])
    found = _picked(table, held, axis)
    around = (*(1,) * axis, *indices.shape, *(1,) * (table.ndim - axis - 1))
    return [found * is_held.to(found.dtype).reshape(around)]


def _picked(table: Tensor, indices: Tensor, axis: int) -> Tensor:
    if axis == 0 and table.ndim == 2:
        return F.embedding(indices, table)
    found = torch.index_select(table, axis, indices.reshape(-1))
    return found.reshape(*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])


def _embedding(a: Attrs, weight: Tensor, indices: Tensor) -> Tensor:
    """Row `padding_idx` gets no gradient."""
    row = a["padding_idx"] if a["padding_idx"] is not None and a["padding_idx"] >= 0 else None
    return F.embedding(indices, weight, row, scale_grad_by_freq=a["scale_grad_by_freq"])


def _gather_nd(params: Tensor, indices: Tensor) -> Tensor:
    return params[tuple(indices.long().unbind(-1))]


def _batch_gather(x: Tensor, indices: Tensor) -> Tensor:
    """(in [rows..., k, rest...], indices [rows..., m]) -> out [rows..., m, rest...]."""
    dim = indices.ndim - 1
    rest = x.shape[dim + 1 :]
    wide = indices.long().reshape(*indices.shape, *(1,) * len(rest)).expand(*indices.shape, *rest)
    return torch.gather(x, dim, wide)


def _one_hot(a: Attrs, indices: Tensor) -> Tensor:
    dtype = getattr(torch, a["dtype"])
    prefix = "floating" if dtype.is_floating_point else "integer"
    on, off = a[f"{prefix}_on_value"], a[f"{prefix}_off_value"]
    return F.one_hot(indices.long(), a["depth"]).to(dtype) * (on - off) + off


def _in_top_k(a: Attrs, targets: Tensor, predictions: Tensor) -> Tensor:
    best = torch.topk(predictions, a["k"]).indices
    return (best == targets.unsqueeze(-1)).any(-1)


def _scatter_nd(a: Attrs, indices: Tensor, updates: Tensor) -> Tensor:
    out = torch.zeros(tuple(a["shape"]), dtype=updates.dtype, device=updates.device)
    return out.index_put(tuple(indices.long().unbind(-1)), updates, accumulate=True)


def _nd_update(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return x.index_put(tuple(indices.long().unbind(-1)), updates)


def _searchsorted(a: Attrs, borders: Tensor, values: Tensor) -> Tensor:
    return torch.searchsorted(borders, values, out_int32=a["out_int32"], right=a["right"])


KERNELS: dict[str, Kernel] = {
    "gather": gather,
    **of_inputs(
        {
            "gather_nd": _gather_nd,
            "batch_gather": _batch_gather,
            "tensor_scatter_nd_update": _nd_update,
        }
    ),
    **of_attrs(
        {
            "embedding": _embedding,
            "dim_gather": lambda a, x, index: torch.gather(x, a["dim"], index.long()),
            "one_hot": _one_hot,
            "searchsorted": _searchsorted,
            "in_top_k": _in_top_k,
            "dim_scatter_update": lambda a, x, index, src: x.scatter(a["dim"], index.long(), src),
            "dim_scatter_update_scalar": lambda a, x, index: x.scatter(
                a["dim"], index.long(), a["src_scalar"]
            ),
            "dim_scatter_add": lambda a, x, index, src: x.scatter_add(a["dim"], index.long(), src),
            "scatter_nd": _scatter_nd,
        }
    ),
}
