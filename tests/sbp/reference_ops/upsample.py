"""Upsampling: along each dim a product with a matrix of weights."""

import autograd.numpy as np

from .registry import op


def _linear(n, scale):
    """[n * scale, n]: the weights with which the sources make up each target."""
    where = np.clip((np.arange(int(n * scale)) + 0.5) / scale - 0.5, 0, n - 1)
    return np.maximum(0, 1 - np.abs(where[:, None] - np.arange(n)[None, :]))


def _nearest(n, scale):
    where = np.floor(np.arange(int(n * scale)) / scale)
    return (where[:, None] == np.arange(n)[None, :]) * 1.0


def _cubic(n, scale):
    """Keys' kernel with a = -0.75; sources beyond the edge are those at the edge."""
    where = (np.arange(int(n * scale)) + 0.5) / scale - 0.5
    weights = np.zeros((len(where), n))
    for shift in range(-1, 3):
        source = np.floor(where) + shift
        d = np.abs(where - source)
        near, far = 1.25 * d**3 - 2.25 * d**2 + 1, -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
        at = np.clip(source, 0, n - 1)[:, None] == np.arange(n)
        weights += at * np.where(d <= 1, near, far)[:, None]
    return weights


def _upsample(weights):
    def run(inputs, attrs, shard):
        (x,) = inputs
        scales = [attrs[name] for name in _SCALES if name in attrs]
        for dim, scale in enumerate(scales, start=2):
            resized = np.tensordot(x, weights(x.shape[dim], scale), axes=((dim,), (1,)))
            x = np.moveaxis(resized, -1, dim)
        return (x,)

    return run


_SCALES = ("scale_factor", "depth_scale", "height_scale", "width_scale")
op(*(f"upsample_nearest_{n}d" for n in (1, 2, 3)))(_upsample(_nearest))
op("upsample_linear_1d", "upsample_bilinear_2d", "upsample_trilinear_3d")(_upsample(_linear))
op("upsample_bicubic_2d")(_upsample(_cubic))
