"""Normalisation over the batch, over each row, or to a length."""

import autograd.numpy as np

from .case import case, f, out, positive
from .reference import op

BATCH_NORM = {"axis": 1, "epsilon": 1e-5, "momentum": 0.9}
LAYER_NORM = {"begin_norm_axis": 2, "begin_params_axis": 2, "epsilon": 1e-5}
FOUR = (f(6), positive(6), f(6), f(6))

CASES = (
    case("images", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=True,
         **BATCH_NORM),
    case("rows", "normalization", (f(4, 6), *FOUR), out(4, 6), training=True, **BATCH_NORM),
    case("untracked", "normalization", (f(4, 6, 3, 2), f(6), f(6)), out(4, 6, 3, 2),
         training=True, **BATCH_NORM),
    case("eval", "normalization", (f(4, 6, 3, 2), *FOUR), out(4, 6, 3, 2), training=False,
         **BATCH_NORM),
    case("", "layer_norm", (f(4, 6, 8), f(8), f(8)), out(4, 6, 8), center=True, scale=True,
         **LAYER_NORM),
    case("plain", "layer_norm", (f(4, 6, 8),), out(4, 6, 8), center=False, scale=False,
         **LAYER_NORM),
    case("two_dims", "layer_norm", (f(4, 6, 8), f(6, 8), f(6, 8)), out(4, 6, 8), center=True,
         scale=True, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5),
    case("", "rms_norm", (f(4, 6, 8), f(8)), out(4, 6, 8), epsilon=1e-5, normalized_shape=(8,)),
    case("", "l2_normalize", (f(4, 6, 8),), out(4, 6, 8), axis=1, epsilon=1e-12),
)  # fmt: skip


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
