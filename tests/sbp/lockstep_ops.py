"""Operators that communicate inside, written as a device runs them.

Each kernel yields the all-reduces that its signature's `inner` states, forward and, in its
pullback, backward; `operators` has the same operators on one device.
"""

import math

import numpy as np

from autoddl.sbp.oracle import AllReduce


def softmax(inputs, attrs, shard):
    (x,) = inputs
    m = yield AllReduce(x.max(-1, keepdims=True, initial=-np.inf), "max")
    e = np.exp(x - m)
    y = e / (yield AllReduce(e.sum(-1, keepdims=True)))

    def pullback(grads):
        (dy,) = grads
        total = yield AllReduce((dy * y).sum(-1, keepdims=True))
        return (y * (dy - total),)

    return (y,), pullback


def log_softmax(inputs, attrs, shard):
    (x,) = inputs
    m = yield AllReduce(x.max(-1, keepdims=True, initial=-np.inf), "max")
    s = yield AllReduce(np.exp(x - m).sum(-1, keepdims=True))
    y = x - m - np.log(s)

    def pullback(grads):
        (dy,) = grads
        total = yield AllReduce(dy.sum(-1, keepdims=True))
        return (dy - np.exp(y) * total,)

    return (y,), pullback


def sparse_softmax_cross_entropy(inputs, attrs, shard):
    x, label = inputs
    hit = label[..., None] == shard.in_starts[0][-1] + np.arange(x.shape[-1])
    m = yield AllReduce(x.max(-1, keepdims=True, initial=-np.inf), "max")
    s = yield AllReduce(np.exp(x - m).sum(-1, keepdims=True))
    picked = yield AllReduce((x * hit).sum(-1, keepdims=True))

    def pullback(grads):
        return (grads[0][..., None] * (np.exp(x - m) / s - hit), None)

    return ((m + np.log(s) - picked)[..., 0],), pullback


def _moments(x, axis, count):
    mean = (yield AllReduce(x.sum(axis, keepdims=True))) / count
    squares = yield AllReduce(((x - mean) ** 2).sum(axis, keepdims=True))
    return mean, squares


def var(inputs, attrs, shard):
    (x,), axis = inputs, tuple(attrs["dim"])
    count = math.prod(shard.op.inputs[0].shape[a] for a in axis)
    mean, squares = yield from _moments(x, axis, count)
    freedom = count - attrs["unbiased"]
    y = squares / freedom

    def pullback(grads):
        return (2 * (x - mean) / freedom * grads[0].reshape(y.shape),)

    return (y if attrs["keepdim"] else y.squeeze(axis),), pullback


def cumsum(inputs, attrs, shard):
    (x,), dim = inputs, attrs["dim"]
    before = yield AllReduce(x.sum(dim, keepdims=True), "before")

    def pullback(grads):
        (dy,) = grads
        after = yield AllReduce(dy.sum(dim, keepdims=True), "after")
        return (np.flip(np.cumsum(np.flip(dy, dim), dim), dim) + after,)

    return (np.cumsum(x, dim) + before,), pullback


def _standardised(x, axis, count, epsilon):
    """The normal x, and the pullback from its gradient to that of x."""
    mean, squares = yield from _moments(x, axis, count)
    scale = 1 / np.sqrt(squares / count + epsilon)
    normal = (x - mean) * scale

    def pullback(grad):
        mean_grad = (yield AllReduce(grad.sum(axis, keepdims=True))) / count
        mean_product = (yield AllReduce((grad * normal).sum(axis, keepdims=True))) / count
        return scale * (grad - mean_grad - normal * mean_product)

    return normal, pullback


def normalization(inputs, attrs, shard):
    x, *moving, gamma, beta = inputs
    others = tuple(d for d in range(x.ndim) if d != attrs["axis"])
    shape = [-1 if d == attrs["axis"] else 1 for d in range(x.ndim)]
    count = math.prod(shard.op.inputs[0].shape[d] for d in others)
    normal, back = yield from _standardised(x, others, count, attrs["epsilon"])

    def pullback(grads):
        (dy,) = grads
        dx = yield from back(dy * gamma.reshape(shape))
        return (dx, *[None] * len(moving), (dy * normal).sum(others), dy.sum(others))

    return (gamma.reshape(shape) * normal + beta.reshape(shape),), pullback


def layer_norm(inputs, attrs, shard):
    x, *params = inputs
    begin = attrs["begin_norm_axis"]
    axis, rows = tuple(range(begin, x.ndim)), tuple(range(begin))
    count = math.prod(shard.op.inputs[0].shape[begin:])
    normal, back = yield from _standardised(x, axis, count, attrs["epsilon"])

    def pullback(grads):
        (dy,) = grads
        dx = yield from back(dy * params[0] if params else dy)
        return (dx, *((dy * normal).sum(rows), dy.sum(rows))[: len(params)])

    return (params[0] * normal + params[1] if params else normal,), pullback


KERNELS = {
    f.__name__: f
    for f in (
        softmax,
        log_softmax,
        sparse_softmax_cross_entropy,
        var,
        cumsum,
        normalization,
        layer_norm,
    )
}
