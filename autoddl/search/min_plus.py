"""Min-plus products of tables, the arithmetic of elimination.

    T[i, j] = min_s ( left[i, s] + node[s] + right[s, j] )

in single precision, which halves the time, of what exceeds the least entries, so that what is
optimal is hardly rounded; the choice that follows from it is evaluated in double. A minimum of
sums is the same in whatever order they are compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..compiled import COMPILER
from .problem import Table

Single = NDArray[np.float32]
_ARRAYS_S = 0.8e-9  # an addition on arrays
_CHUNK = 250_000  # additions on arrays at once


def min_plus(left: Table, node: Table, right: Table) -> Single:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j]."""
    loops = COMPILER.worth(in_loops, _ARRAYS_S * len(left) * right.size)
    if loops is None:
        return on_arrays(left, node, right)
    left, node, right = (np.ascontiguousarray(t, dtype=np.float64) for t in (left, node, right))
    return loops(left, node, right)


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


def in_loops(left: Table, node: Table, right: Table) -> Single:
    """The same, to be compiled; of tables in double precision."""
    rows, inner = left.shape
    columns = right.shape[1]
    least, other = np.inf, np.inf
    for row in range(rows):
        for s in range(inner):
            least = min(least, left[row, s] + node[s])
    for s in range(inner):
        for j in range(columns):
            other = min(other, right[s, j])
    least = least if np.isfinite(least) else 0.0
    other = other if np.isfinite(other) else 0.0
    onward = np.empty(right.shape, dtype=np.float32)
    for s in range(inner):
        for j in range(columns):
            onward[s, j] = np.float32(right[s, j] - other)
    above = np.empty(inner, dtype=np.float32)
    result = np.empty((rows, columns), dtype=np.float32)
    both = np.float32(least + other)
    fours = inner - inner % 4
    for row in range(rows):
        for s in range(inner):
            above[s] = np.float32(left[row, s] + node[s] - least)
        found = result[row]
        found[:] = np.float32(np.inf)
        for s in range(0, fours, 4):  # a column is loaded and stored once for four
            a, b, c, d = above[s], above[s + 1], above[s + 2], above[s + 3]
            first, second, third, fourth = onward[s], onward[s + 1], onward[s + 2], onward[s + 3]
            for j in range(columns):
                x = min(a + first[j], b + second[j])
                y = min(c + third[j], d + fourth[j])
                found[j] = min(min(x, y), found[j])
        for s in range(fours, inner):
            a, first = above[s], onward[s]
            for j in range(columns):
                found[j] = min(a + first[j], found[j])
        for j in range(columns):
            found[j] += both
    return result
