"""Elementwise operators of any number of inputs, and those that need to know a dim."""

import autograd.numpy as np

from .registry import op


@op("add_n", "broadcast_add")
def _add(inputs, attrs, shard):
    return (sum(inputs[1:], inputs[0]),)


@op("where")
def _where(inputs, attrs, shard):
    condition, x, y = inputs
    return (condition * x + (1 - condition) * y,)


@op("cast")
def _cast(inputs, attrs, shard):
    return (inputs[0].astype(attrs["dtype"]) if "int" in attrs["dtype"] else 1.0 * inputs[0],)


@op("bias_add")
def _bias_add(inputs, attrs, shard):
    a, b = inputs
    return (a + b.reshape([-1 if d == attrs["axis"] else 1 for d in range(a.ndim)]),)


@op("prelu")
def _prelu(inputs, attrs, shard):
    x, alpha = inputs
    alpha = alpha.reshape([-1 if d == 1 else 1 for d in range(x.ndim)])
    return (np.where(x > 0, x, alpha * x),)


@op("dropout")
def _dropout(inputs, attrs, shard):
    """A mask of the global position, so that every shard sees its part of one mask."""
    (x,) = inputs
    grids = np.meshgrid(
        *(start + np.arange(n) for start, n in zip(shard.in_starts[0], x.shape, strict=True)),
        indexing="ij",
    )
    position = np.ravel_multi_index(grids, shard.op.inputs[0].shape)
    keep = (position * 7919) % 101 / 101 >= attrs["rate"]
    return (x * keep / (1 - attrs["rate"]),)
