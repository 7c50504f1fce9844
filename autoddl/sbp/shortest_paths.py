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
from .layout import Floats, Ints

# Starts that are searched at once. Of 16 to 64 each takes the same CPU time within noise (10 %), of
# one twice to four times as much (graphs of vgg13 on 64, densenet121 on 2x8, gpt3_175b on 128x8).
_AT_ONCE = 64


def lengths(
    begins: Ints, targets: Ints, weights: Floats, starts: Ints, ends: Ints | None = None
) -> Floats:
    """[starts, ends] lengths of the cheapest paths; None: to all nodes.

    begins: [nodes + 1] where the edges that leave each node begin among `targets` and `weights`

    Edges of infinite weight are not there.
    """
    num_nodes = len(begins) - 1
    compiled = loops()
    if compiled is None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        matrix = csr_matrix((weights, targets, begins), shape=(num_nodes, num_nodes))
        found = dijkstra(matrix, indices=starts)
        return found if ends is None else found[:, ends]
    first_edges, leads_to = begins.astype(np.int32), targets.astype(np.int32)
    found = np.empty((len(starts), num_nodes if ends is None else len(ends)))
    for first in range(0, len(starts), _AT_ONCE):
        own = starts[first : first + _AT_ONCE]
        length = np.full((num_nodes, len(own)), np.inf)
        length[own, np.arange(len(own))] = 0.0
        compiled.shortest(first_edges, leads_to, weights, length)
        found[first : first + _AT_ONCE] = (length if ends is None else length[ends]).T
    return found
