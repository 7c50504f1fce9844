"""The edges of a state graph that tensors need whose dims divide alike, with their prices.

Such tensors have the same even states, and so the same edges. They differ in bytes: an edge from or
to a state of so many parts in all, the fewer of the two counted, costs

    alpha_s + s_per_byte / parts * bytes of the whole tensor
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .layout import Bools, Floats, Ints, Shape, divides_evenly
from .shortest_paths import FEW_STARTS, lengths, lengths_one_by_one
from .states import BySource, StateGraph, by_source


@dataclass(frozen=True, eq=False)
class PricedGraph:
    """edges: those of `whole` that are needed, by ascending sources; even: [states]."""

    whole: StateGraph
    edges: Ints
    alpha_s: Floats
    s_per_byte: Floats
    even: Bools

    @cached_property
    def graph(self) -> StateGraph:
        """With the edges that are needed only."""
        whole = self.whole
        own = (column[self.edges] for column in (whole.src, whole.dst, whole.kind, whole.mask))
        src, dst, kind, mask = own
        return replace(whole, src=src, dst=dst, kind=kind, mask=mask, first=None)

    @cached_property
    def by_source(self) -> BySource:
        """As `StateGraph.by_source`."""
        sources = self.whole.src[self.edges]
        return by_source(sources, self.whole.dst[self.edges], len(self.whole.codes))

    def weights(self, num_bytes: int) -> Floats:
        """Seconds of each edge for a tensor of so many bytes."""
        return self.alpha_s + self.s_per_byte * num_bytes

    def lengths(self, num_bytes: int, starts: Ints, *, backwards: bool = False) -> Floats:
        """[starts, states] of the cheapest ways; backwards: from the states to the starts."""
        weights = self.weights(num_bytes)
        if len(starts) <= FEW_STARTS:
            return lengths_one_by_one(self.by_source, weights, starts, backwards=backwards)
        every = np.arange(len(self.whole.codes))
        return lengths(self.graph, weights, starts, every, backwards=backwards)

    def joined(self, graph: StateGraph, added: PricedGraph) -> PricedGraph:
        """The edges of `graph`: those of its first graph, which are these, and the added ones."""
        assert graph.first is not None
        edges = np.concatenate([self.edges, len(graph.first.src) + added.edges])
        order = np.argsort(graph.src[edges], kind="stable")

        def both(own: Floats, others: Floats) -> Floats:
            return np.concatenate([own, others])[order]

        return PricedGraph(
            graph,
            edges[order],
            both(self.alpha_s, added.alpha_s),
            both(self.s_per_byte, added.s_per_byte),
            added.even,
        )


def priced_graph(graph: StateGraph, shape: Shape, prices: Floats) -> PricedGraph:
    """What tensors that divide as `shape` need of `graph`.

    prices: for each group of `graph.groups` its latency (infinite: not allowed) and seconds per
    byte of a shard
    """
    even = divides_evenly(shape, graph.parts)
    group_of = graph.groups[1]
    needed = even[graph.src] & even[graph.dst]
    if not np.isfinite(prices[:, 0]).all():
        needed &= np.isfinite(prices[:, 0])[group_of]
    edges = np.flatnonzero(needed)
    src, dst, group_of = graph.src[edges], graph.dst[edges], group_of[edges]
    alpha_s, s_per_byte = prices[:, 0][group_of], prices[:, 1][group_of]
    s_per_byte /= np.minimum(graph.shards[src], graph.shards[dst])
    return PricedGraph(graph, edges, alpha_s, s_per_byte, even)
