"""An image sampled at points that are given, and grids of such points."""

import autograd.numpy as np

from .registry import op


@op("grid_sample")
def _grid_sample(inputs, attrs, shard):
    """Bilinear, zero beyond the edge; -1 and 1 are the outer edges of the first and last pixels."""
    x, grid = inputs
    rows, columns = (
        np.maximum(0, 1 - np.abs(((at + 1) * n - 1)[..., None] / 2 - np.arange(n)))
        for at, n in ((grid[..., 1], x.shape[2]), (grid[..., 0], x.shape[3]))
    )
    return (np.einsum("nchw,nijh,nijw->ncij", x, rows, columns),)


@op("affine_grid")
def _affine_grid(inputs, attrs, shard):
    (theta,), (rows, _, height, width) = inputs, attrs["size"]
    assert rows == len(theta)
    y, x = ((2 * np.arange(n) + 1) / n - 1 for n in (height, width))
    base = np.stack([*np.meshgrid(x, y), np.ones((height, width))], axis=-1)
    return (np.einsum("hwk,nck->nhwc", base, theta),)
