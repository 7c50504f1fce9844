"""Reductions, order statistics and running sums."""

import math

import autograd.numpy as np

from .registry import op


def _reduction(function):
    def run(inputs, attrs, shard):
        return (function(inputs[0], axis=tuple(attrs["axis"]), keepdims=attrs["keepdims"]),)

    return run


op("reduce_sum")(_reduction(np.sum))
op("reduce_max")(_reduction(np.max))
op("reduce_min")(_reduction(np.min))
op("reduce_any")(_reduction(np.any))
op("reduce_all")(_reduction(np.all))


@op("reduce_prod")
def _prod(inputs, attrs, shard):
    (axis,) = attrs["axis"]
    return (np.prod(inputs[0], axis=axis),)


@op("reduce_mean")
def _mean(inputs, attrs, shard):
    axis = tuple(attrs["axis"])
    count = attrs.get("count", math.prod(inputs[0].shape[a] for a in axis))
    return (np.sum(inputs[0], axis=axis, keepdims=attrs["keepdims"]) / count,)


@op("var")
def _var(inputs, attrs, shard):
    (x,), axis = inputs, tuple(attrs["dim"])
    return (np.var(x, axis=axis, keepdims=attrs["keepdim"], ddof=int(attrs["unbiased"])),)


@op("reduce_nansum")
def _nansum(inputs, attrs, shard):
    (x,), axis = inputs, tuple(attrs["axis"])
    return (np.sum(np.where(np.isnan(x), 0.0, x), axis=axis, keepdims=attrs["keepdims"]),)


@op("median_with_indices")
def _median(inputs, attrs, shard):
    (x,) = inputs
    order = np.argsort(getattr(x, "_value", x), axis=-1)
    chosen = order[..., (x.shape[-1] - 1) // 2]
    return (np.sum(x * (chosen[..., None] == np.arange(x.shape[-1])), axis=-1),)


@op("argmax")
def _argmax(inputs, attrs, shard):
    return (np.argmax(inputs[0], axis=-1),)


@op("arg_sort")
def _arg_sort(inputs, attrs, shard):
    return (np.argsort(inputs[0], axis=-1),)


@op("top_k")
def _top_k(inputs, attrs, shard):
    return (np.argsort(-inputs[0], axis=-1)[..., : attrs["k"]],)


@op("cumsum")
def _cumsum(inputs, attrs, shard):
    return (np.cumsum(inputs[0], axis=attrs["dim"]),)
