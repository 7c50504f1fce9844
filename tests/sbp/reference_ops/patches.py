"""Patches of an image side by side, and added up again."""

import math

import autograd.numpy as np

from .registry import op
from .windows import pad_window, windows


def _patches_of(x, attrs):
    met = windows(
        pad_window(x, attrs["padding"], 0.0),
        attrs["kernel_size"], attrs["strides"], attrs["dilation_rate"],
    )  # fmt: skip
    return np.moveaxis(met, 0, 2).reshape((x.shape[0], -1, math.prod(met.shape[3:])))


@op("unfold")
def _unfold(inputs, attrs, shard):
    return (_patches_of(inputs[0], attrs),)


@op("fold")
def _fold(inputs, attrs, shard):
    """The transpose of `unfold`: patches add up where they overlap."""
    (x,), size = inputs, attrs["output_size"]
    pixels = np.eye(math.prod(size)).reshape((-1, 1, *size))
    whence = _patches_of(pixels, attrs)  # [pixel, tap, place]
    x = x.reshape((x.shape[0], -1, *whence.shape[1:]))
    return (np.einsum("nctl,ptl->ncp", x, whence).reshape((*x.shape[:2], *size)),)
