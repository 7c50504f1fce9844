"""One micro-batch of a model, of any number of them: its graph and its groups.

Only sizes differ. What merges with what, which groups are alike, and what leaves the blocks that
are run again, is found once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...cost.recompute import Recomputation
from ...graph.graph import Graph
from ...graph.regions import Blocks
from .groups import Grouping, make_groups


@dataclass(frozen=True)
class MicroBatches:
    """whole: the graph of the whole batch, with forks; in_flight: of `Recomputation`."""

    whole: Graph
    in_flight: int = 1

    @staticmethod
    def of(graph: Graph, in_flight: int = 1) -> MicroBatches:
        """Of a graph without forks."""
        return MicroBatches(graph.with_forks(), in_flight)

    def graph(self, parts: int) -> Graph:
        """One of `parts` micro-batches. ValueError if the batch cannot be cut so."""
        return self.grouping(parts).graph

    def grouping(self, parts: int) -> Grouping:
        """Its groups."""
        if parts not in self._known:
            graph = self.whole.with_batch(self.whole.batch // parts)
            self._known[parts] = self._known[1].at_batch(graph)
        return self._known[parts]

    def again(self, parts: int, blocks: Blocks) -> Recomputation:
        """Which blocks of a micro-batch are run again."""
        if blocks not in self._again:
            self._again[blocks] = Recomputation(self.whole, blocks, self.in_flight)
        return self._again[blocks].at_batch(self.graph(parts)) if parts > 1 else self._again[blocks]

    @cached_property
    def _again(self) -> dict[Blocks, Recomputation]:
        """Of the whole batch."""
        return {}

    @cached_property
    def _known(self) -> dict[int, Grouping]:
        return {1: make_groups(self.whole)}
