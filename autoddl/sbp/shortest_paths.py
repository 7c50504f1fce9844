"""Cheapest paths from many starts to all nodes of a graph.

    length[start, v] = min over edges u -> v of length[start, u] + weight(u, v)

holds for all v exactly when the lengths are those of the cheapest paths. Compiled loops (`_native`)
take one node after the other and extend its paths along its edges, for some starts at once, until
no length changes (Bellman and Ford); as cheapest paths have few edges, that takes few rounds. Where
there are no compiled loops, SciPy searches from one start after the other (Dijkstra). Both give the
same bits, because rounding keeps the order of sums.
"""

from __future__ import annotations

import numpy as np

from .._native.library import loops
from .edges import narrowed
from .layout import Floats, Ints

# Starts that are searched at once. Of 16 to 64 each takes the same CPU time within noise (10 %), of
# one twice to four times as much (graphs of vgg13 on 64, densenet121 on 2x8, gpt3_175b on 128x8).
_AT_ONCE = 64


def lengths(num_nodes: int, src: Ints, dst: Ints, weights: Floats, starts: Ints) -> Floats:
    """[starts, nodes] lengths of the cheapest paths along the edges from `src` to `dst`.

    Edges of infinite weight are not there.
    """
    order = np.flatnonzero(np.isfinite(weights))
    if (src[1:] < src[:-1]).any():
        order = order[np.argsort(narrowed(src[order]), kind="stable")]
    begins = np.zeros(num_nodes + 1, dtype=np.int32)
    np.cumsum(np.bincount(src[order], minlength=num_nodes), out=begins[1:])
    targets, weights = dst[order].astype(np.int32), weights[order]
    compiled = loops()
    if compiled is None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        matrix = csr_matrix((weights, targets, begins), shape=(num_nodes, num_nodes))
        return dijkstra(matrix, indices=starts)
    found = np.empty((len(starts), num_nodes))
    for first in range(0, len(starts), _AT_ONCE):
        own = starts[first : first + _AT_ONCE]
        length = np.full((num_nodes, len(own)), np.inf)
        length[own, np.arange(len(own))] = 0.0
        compiled.shortest(begins, targets, weights, length)
        found[first : first + _AT_ONCE] = length.T
    return found
