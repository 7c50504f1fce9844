"""One micro-batch of a model, of any number of them: its graph and its groups.

Only sizes differ. What merges with what, and which groups are alike, is found once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..graph import Graph
from .group import Grouping, make_groups


@dataclass(frozen=True)
class MicroBatches:
    """whole: the graph of the whole batch, with forks."""

    whole: Graph

    @staticmethod
    def of(graph: Graph) -> MicroBatches:
        """Of a graph without forks."""
        return MicroBatches(graph.with_forks())

    def graph(self, parts: int) -> Graph:
        """One of `parts` micro-batches. ValueError if the batch cannot be cut so."""
        return self.grouping(parts).graph

    def grouping(self, parts: int) -> Grouping:
        """Its groups."""
        if parts not in self._known:
            graph = self.whole.with_batch(self.whole.batch // parts)
            self._known[parts] = self._known[1].at_batch(graph)
        return self._known[parts]

    @cached_property
    def _known(self) -> dict[int, Grouping]:
        return {1: make_groups(self.whole)}
