"""The edges of a state graph that tensors need whose dims divide alike, with their prices.

Such tensors have the same even states, and need the same edges (`needless`). They differ in bytes:
an edge from or to a state of so many parts in all, the fewer of the two counted, costs

    alpha_s + s_per_byte / parts * bytes of the whole tensor
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .edges import Bools, Floats, Ints
from .layout import Shape
from .needless import is_needless
from .states import StateGraph


@dataclass(frozen=True, eq=False)
class Lean:
    """graph: with the edges that are needed only, by ascending sources; even: [states].

    edges: which edges of the whole graph these are
    """

    graph: StateGraph
    edges: Ints
    alpha_s: Floats
    s_per_byte: Floats
    even: Bools

    def weights(self, num_bytes: int) -> Floats:
        """Seconds of each edge for a tensor of so many bytes."""
        return self.alpha_s + self.s_per_byte * num_bytes

    def joined(self, graph: StateGraph, added: Lean) -> Lean:
        """The edges of `graph`: those of its first graph, which are these, and the added ones."""
        assert graph.first is not None
        src = np.concatenate([self.graph.src, added.graph.src])
        order = np.argsort(src, kind="stable")

        def both(own: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([own, others])[order]

        lean = replace(
            graph,
            src=src[order],
            dst=both(self.graph.dst, added.graph.dst),
            kind=both(self.graph.kind, added.graph.kind),
            mask=both(self.graph.mask, added.graph.mask),
            first=None,
        )
        return Lean(
            lean,
            both(self.edges, len(graph.first.src) + added.edges),
            both(self.alpha_s, added.alpha_s),
            both(self.s_per_byte, added.s_per_byte),
            added.even,
        )


def lean_edges(graph: StateGraph, shape: Shape, prices: Floats, parts: Bools, sums: Bools) -> Lean:
    """What tensors that divide as `shape` need of `graph`.

    prices, parts, sums: for each group of `graph.groups`, its latency (infinite: not allowed) and
    seconds per byte of a shard, and as for `is_needless`
    """
    even = (np.array(shape, dtype=np.int64) % graph.parts == 0).all(axis=1)
    group_of = graph.groups[1]
    needed = even[graph.src] & even[graph.dst] & np.isfinite(prices[:, 0])[group_of]
    if parts.any() or sums.any():
        needed &= ~is_needless(graph.halfway, parts[group_of], sums[group_of], even)
    edges = np.flatnonzero(needed)
    src, dst, group_of = graph.src[edges], graph.dst[edges], group_of[edges]
    count = graph.parts.prod(axis=1)
    per_byte = prices[group_of, 1] / np.minimum(count[src], count[dst])
    fewer = replace(graph, src=src, dst=dst, kind=graph.kind[edges], mask=graph.mask[edges])
    return Lean(fewer, edges, prices[group_of, 0], per_byte, even)
