"""Elements written, or added, to places that are given."""

import math

import autograd.numpy as np

from .registry import op


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
