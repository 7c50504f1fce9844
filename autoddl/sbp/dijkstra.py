"""Cheapest ways from one start after the other, by Dijkstra's algorithm.

By compiled loops, or by SciPy where there are none: the least sums are the same.
"""

from __future__ import annotations

import numpy as np

from .._native import loops
from .layout import Floats, Ints
from .states import BySource


def lengths_one_by_one(
    by_source: BySource, weights: Floats, starts: Ints, *, backwards: bool = False
) -> Floats:
    """[starts, nodes] lengths; edges of infinite weight are not there.

    backwards: of ways from the nodes to the starts
    """
    targets, begins = by_source
    compiled = loops()
    if compiled is not None:
        return compiled.shortest(begins, targets, weights, starts, backwards=backwards)
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    there = np.isfinite(weights)
    if not there.all():
        begins = np.append(0, np.cumsum(there))[begins]
        weights, targets = weights[there], targets[there]
    nodes = len(begins) - 1
    matrix = csr_matrix((weights, targets, begins), shape=(nodes, nodes))
    return dijkstra(csr_matrix(matrix.T) if backwards else matrix, indices=starts)
