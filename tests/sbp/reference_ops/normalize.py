"""Normalisation over the batch, over each row, or to a length."""

import autograd.numpy as np

from .registry import op


def standardise(x, axis, epsilon):
    mean = np.mean(x, axis=axis, keepdims=True)
    return (x - mean) / np.sqrt(np.mean((x - mean) ** 2, axis=axis, keepdims=True) + epsilon)


@op("normalization")
def _normalization(inputs, attrs, shard):
    x, *moving, gamma, beta = inputs
    shape = [-1 if d == attrs["axis"] else 1 for d in range(x.ndim)]
    if attrs["training"]:
        others = tuple(d for d in range(x.ndim) if d != attrs["axis"])
        normal = standardise(x, others, attrs["epsilon"])
    else:
        mean, variance = (m.reshape(shape) for m in moving)
        normal = (x - mean) / np.sqrt(variance + attrs["epsilon"])
    return (gamma.reshape(shape) * normal + beta.reshape(shape),)


@op("layer_norm")
def _layer_norm(inputs, attrs, shard):
    x, *params = inputs
    normal = standardise(x, tuple(range(attrs["begin_norm_axis"], x.ndim)), attrs["epsilon"])
    return (params[0] * normal + params[1] if params else normal,)


@op("rms_norm")
def _rms_norm(inputs, attrs, shard):
    x, weight = inputs
    return (weight * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + attrs["epsilon"]),)


@op("l2_normalize")
def _l2_normalize(inputs, attrs, shard):
    (x,) = inputs
    return (x / np.sqrt(np.sum(x**2, axis=attrs["axis"], keepdims=True) + attrs["epsilon"]),)
