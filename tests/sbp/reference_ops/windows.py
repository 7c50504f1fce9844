"""The windows of a tensor on which a kernel lies."""

import itertools

import autograd.numpy as np


def pad_window(x, padding, value):
    widths = [(0, 0)] * (x.ndim - len(padding)) + [(p, p) for p in padding]
    return np.pad(x, widths, mode="constant", constant_values=value)


def windows(x, kernel, stride, dilation):
    """[taps, n, c, ...]: for each tap of the kernel the elements of x that it meets."""
    spatial = x.shape[2:]
    size = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(spatial, kernel, stride, dilation, strict=True)
    ]
    taps = []
    for tap in itertools.product(*map(range, kernel)):
        cut = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, size, stride, strict=True)
        ]
        taps.append(x[(slice(None), slice(None), *cut)])
    return np.stack(taps)
