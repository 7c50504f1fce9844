"""Lookups in tables, and what is written, or added, to places that are given."""

import math
from typing import Any

import autograd.numpy as np

from .case import case, f, index, out, rising
from .reference import op

BORDERS: dict[str, Any] = {"out_int32": False, "right": True}

CASES = (
    case("embedding", "gather", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), axis=0),
    case("bag", "gather", (f(12, 8), index(12, 4)), out(4, 8), axis=0),
    case("columns", "gather", (f(4, 12), index(12, 6)), out(4, 6), axis=1),
    case("middle", "gather", (f(4, 12, 8), index(12, 6)), out(4, 6, 8), axis=1),
    case("", "embedding", (f(12, 8), index(12, 4, 6)), out(4, 6, 8), padding_idx=0,
         scale_grad_by_freq=False),
    case("by_frequency", "embedding", (f(12, 8), index(12, 24)), out(24, 8), padding_idx=0,
         scale_grad_by_freq=True),
    case("triangle", "gather_nd", (f(4, 4, 8), index(4, 6, 2)), out(6, 8)),
    case("rows", "gather_nd", (f(12, 8), index(12, 6, 1)), out(6, 8)),
    case("", "dim_gather", (f(4, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("part", "dim_gather", (f(8, 12), index(12, 4, 6)), out(4, 6), dim=1),
    case("", "batch_gather", (f(4, 12, 8), index(12, 4, 6)), out(4, 6, 8)),
    case("rows", "batch_gather", (f(4, 6, 12), index(12, 4, 6, 2)), out(4, 6, 2)),
    case("", "searchsorted", (rising(12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("rows", "searchsorted", (rising(4, 12), f(4, 6)), out(4, 6, dtype="int64"), **BORDERS),
    case("", "in_top_k", (index(12, 6), f(6, 12)), out(6, dtype="bool"), k=3),
    case("", "dim_scatter_update", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("part", "dim_scatter_update", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=1.5),
    case("zero", "dim_scatter_update_scalar", (f(4, 12), index(12, 4, 6)), out(4, 12), dim=1,
         src_scalar=0.0),
    case("", "dim_scatter_add", (f(4, 12, 6), index(12, 4, 8, 6), f(4, 8, 6)), out(4, 12, 6),
         dim=1),
    case("nodes", "dim_scatter_add", (f(5, 6), index(5, 12, 6), f(12, 6)), out(5, 6), dim=0),
    case("part", "dim_scatter_add", (f(8, 12), index(12, 4, 6), f(4, 6)), out(8, 12), dim=1),
    case("ints", "dim_scatter_add", (index(9, 4, 12), index(12, 4, 6), index(9, 4, 6)),
         out(4, 12, dtype="int64"), dim=1),
    case("", "scatter_nd", (index(5, 12, 1), f(12, 6)), out(5, 6), shape=(5, 6)),
    case("cells", "scatter_nd", (index(3, 4, 6, 2), f(4, 6, 8)), out(5, 3, 8), shape=(5, 3, 8)),
    case("", "tensor_scatter_nd_update", (f(12, 6), index(12, 4, 1), f(4, 6)), out(12, 6)),
    case("", "one_hot", (index(12, 4, 6),), out(4, 6, 12, dtype="int64"), depth=12,
         dtype="int64", floating_on_value=0.0, floating_off_value=0.0, integer_on_value=1,
         integer_off_value=0),
)  # fmt: skip


def masked_lookup(local_index, n):
    """Indices that are safe in n rows, and 1 where the index was inside, else 0."""
    inside = (local_index >= 0) & (local_index < n)
    return np.where(inside, local_index, 0), inside * 1.0


@op("gather")
def _gather(inputs, attrs, shard):
    table, indices = inputs
    axis = attrs["axis"]
    safe, inside = masked_lookup(indices - shard.in_starts[0][axis], table.shape[axis])
    rows = np.moveaxis(table, axis, 0)[safe]
    rows = rows * inside.reshape((*indices.shape, *(1,) * (table.ndim - 1)))
    found = tuple(range(indices.ndim))
    return (np.moveaxis(rows, found, tuple(axis + d for d in found)),)


@op("embedding")
def _embedding(inputs, attrs, shard):
    """No gradient for the padding row; gradients divided by the index's frequency if asked."""
    weight, indices = inputs
    counts = np.bincount(indices.ravel(), minlength=len(weight))
    scale = 1.0 / np.maximum(counts, 1) if attrs["scale_grad_by_freq"] else np.ones(len(weight))
    scale = np.where(np.arange(len(weight)) == attrs["padding_idx"], 0, scale)[:, None]
    constant = getattr(weight, "_value", weight) * (1 - scale)
    return ((weight * scale + constant)[indices],)


@op("gather_nd")
def _gather_nd(inputs, attrs, shard):
    params, indices = inputs
    return (params[tuple(np.moveaxis(indices, -1, 0))],)


@op("dim_gather")
def _dim_gather(inputs, attrs, shard):
    x, index = inputs
    grids = list(np.meshgrid(*map(np.arange, index.shape), indexing="ij"))
    grids[attrs["dim"]] = index
    return (x[tuple(grids)],)


@op("batch_gather")
def _batch_gather(inputs, attrs, shard):
    x, indices = inputs
    rows = np.indices(indices.shape)[:-1]
    return (x[(*rows, indices)],)


@op("searchsorted")
def _searchsorted(inputs, attrs, shard):
    borders, values = inputs
    side = "right" if attrs["right"] else "left"
    rows = np.broadcast_to(borders, (*values.shape[:-1], borders.shape[-1]))
    found = np.empty(values.shape, int)
    for at in np.ndindex(values.shape[:-1]):
        found[at] = np.searchsorted(rows[at], values[at], side)
    return (found,)


@op("in_top_k")
def _in_top_k(inputs, attrs, shard):
    targets, predictions = inputs
    larger = predictions > predictions[np.arange(len(targets)), targets][:, None]
    return (larger.sum(axis=-1) < attrs["k"],)


@op("one_hot")
def _one_hot(inputs, attrs, shard):
    return ((inputs[0][..., None] == np.arange(attrs["depth"])).astype(int),)


@op("dim_scatter_update", "dim_scatter_update_scalar")
def _scatter(inputs, attrs, shard):
    x, index, *src = inputs
    new = src[0] if src else np.full(index.shape, float(attrs["src_scalar"]))
    cells = list(np.indices(index.shape))
    cells[attrs["dim"]] = index
    numbers = np.arange(x.size).reshape(x.shape)
    covered = tuple(map(slice, index.shape))
    numbers[tuple(cells)] = x.size + np.arange(new.size).reshape(new.shape)[covered]
    return (np.concatenate([x.ravel(), new.ravel()])[numbers],)


@op("dim_scatter_add")
def _scatter_add(inputs, attrs, shard):
    x, index, src = inputs
    cells = list(np.indices(index.shape))
    cells[attrs["dim"]] = index
    target = np.ravel_multi_index(cells, x.shape)[..., None] == np.arange(x.size)
    covered = src[tuple(map(slice, index.shape))]
    return (x + np.tensordot(covered, target * 1.0, axes=index.ndim).reshape(x.shape),)


def _flat_rows(indices, shape):
    depth = indices.shape[-1]
    return np.ravel_multi_index(tuple(np.moveaxis(indices, -1, 0)), shape[:depth])


@op("scatter_nd")
def _scatter_nd(inputs, attrs, shard):
    (indices, updates), shape = inputs, attrs["shape"]
    rows = _flat_rows(indices, shape)
    target = np.expand_dims(rows, -1) == np.arange(math.prod(shape[: indices.shape[-1]]))
    axes = list(range(rows.ndim))
    return (np.tensordot(target * 1.0, updates, axes=(axes, axes)).reshape(shape),)


@op("tensor_scatter_nd_update")
def _tensor_scatter(inputs, attrs, shard):
    x, indices, updates = inputs
    numbers = np.arange(x.size).reshape(x.shape)
    cells = tuple(np.moveaxis(indices, -1, 0))
    numbers[cells] = x.size + np.arange(updates.size).reshape(updates.shape)
    return (np.concatenate([x.ravel(), updates.ravel()])[numbers],)
