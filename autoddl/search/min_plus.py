"""Min-plus products of tables, the arithmetic of elimination.

    T[i, j] = min_s ( left[i, s] + node[s] + right[s, j] )

in single precision, which halves the time, of what exceeds the least entries, so that what is
optimal is hardly rounded; the choice that follows from it is evaluated in double. A minimum of
sums is the same in whatever order they are compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._native import loops
from .problem import Table

Single = NDArray[np.float32]
_CHUNK = 250_000  # additions on arrays at once


def min_plus(left: Table, node: Table, right: Table) -> Single:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j]."""
    compiled = loops()
    return (
        on_arrays(left, node, right) if compiled is None else compiled.min_plus(left, node, right)
    )


def on_arrays(left: Table, node: Table, right: Table) -> Single:
    weighted = left + node.astype(np.float64)
    least, other = _least(weighted), _least(right)
    above = (weighted - least).astype(np.float32, order="C")
    onward = (right.astype(np.float64) - other).astype(np.float32, order="C")
    result = np.empty((len(left), right.shape[1]), dtype=np.float32)
    rows = max(1, _CHUNK // max(1, right.size))
    turned = above.T[:, :, None]
    for low in range(0, len(left), rows):
        sums = turned[:, low : low + rows] + onward[:, None, :]
        sums.min(axis=0, initial=np.inf, out=result[low : low + rows])
    return result + np.float32(least + other)


def _least(table: Table) -> float:
    least = float(table.min(initial=np.inf))
    return least if np.isfinite(least) else 0.0
