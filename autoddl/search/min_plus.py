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


def min_plus(left: Table, node: Table, right: Table) -> Table:
    """min over s of left[i, s] + node[s] + right[s, j], as an array [i, j]."""
    weighted = left + node
    least, other = _least(weighted), _least(right)
    result = np.empty((len(left), right.shape[1]), dtype=np.float32)
    loops = COMPILER.worth(in_loops, _ARRAYS_S * len(left) * right.size)
    (loops or on_arrays)(
        (weighted - least).astype(np.float32, order="C"),
        (right - other).astype(np.float32, order="C"),
        result,
    )
    return result + (least + other)


def _least(table: Table) -> float:
    least = float(table.min(initial=np.inf))
    return least if np.isfinite(least) else 0.0


def on_arrays(left: Single, right: Single, result: Single) -> None:
    """Into `result` [i, j] the least left[i, s] + right[s, j]."""
    rows = max(1, _CHUNK // max(1, right.size))
    turned = left.T[:, :, None]
    for low in range(0, len(left), rows):
        sums = turned[:, low : low + rows] + right[:, None, :]
        sums.min(axis=0, initial=np.inf, out=result[low : low + rows])


def in_loops(left: Single, right: Single, result: Single) -> None:
    """The same, to be compiled."""
    rows, inner = left.shape
    columns = right.shape[1]
    fours = inner - inner % 4
    for row in range(rows):
        least = result[row]
        least[:] = np.float32(np.inf)
        for s in range(0, fours, 4):  # a column is loaded and stored once for four
            a, b, c, d = left[row, s], left[row, s + 1], left[row, s + 2], left[row, s + 3]
            first, second, third, fourth = right[s], right[s + 1], right[s + 2], right[s + 3]
            for j in range(columns):
                x = min(a + first[j], b + second[j])
                y = min(c + third[j], d + fourth[j])
                least[j] = min(min(x, y), least[j])
        for s in range(fours, inner):
            a, first = left[row, s], right[s]
            for j in range(columns):
                least[j] = min(a + first[j], least[j])
