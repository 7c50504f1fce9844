"""Pooling by windows, or to a given size."""

import itertools

import autograd.numpy as np

from .registry import op
from .windows import pad_window, windows


def _pool(reduce, fill):
    def run(inputs, attrs, shard):
        x = pad_window(inputs[0], attrs["padding"], fill)
        dilation = attrs.get("dilation", (1,) * len(attrs["stride"]))
        return (reduce(windows(x, attrs["kernel_size"], attrs["stride"], dilation)),)

    return run


op(*(f"max_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.max(w, axis=0), -1e30))
op(*(f"avg_pool_{n}d" for n in (1, 2, 3)))(_pool(lambda w: np.mean(w, axis=0), 0.0))


def _adaptive(reduce):
    def run(inputs, attrs, shard):
        (x,), size = inputs, attrs["output_size"]
        spans = [
            [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
            for n, m in zip(x.shape[-len(size) :], size, strict=True)
        ]
        over = tuple(range(-len(size), 0))
        cells = [
            reduce(x[(..., *(slice(*span) for span in cell))], over)
            for cell in itertools.product(*spans)
        ]
        return (np.stack(cells, axis=-1).reshape((*x.shape[: -len(size)], *size)),)

    return run


op(*(f"adaptive_avg_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.mean(x, axis=over)))
op(*(f"adaptive_max_pool{n}d" for n in (1, 2, 3)))(_adaptive(lambda x, over: np.max(x, axis=over)))
