"""Lookups in tables."""

import autograd.numpy as np

from .registry import op


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
