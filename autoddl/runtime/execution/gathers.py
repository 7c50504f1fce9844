"""Parameters that are stored split (ZeRO's stage 3), each gathered for the one reader that it has.

Collectives run in the order in which they are asked for. So where gradients travel beside the
backward pass, what a reader needs is asked for one reader ahead, in front of the gradients of the
reader before it, which need not hurry (`plans.schedule.step` has the seconds). Two of these
parameters are there at once then, and one else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..backend import Tensor
from .program import Edge, Key, Node


class Gathers:
    """What is gathered in a pass, in the order of its readers.

    fetch: asks for the parameter of an edge
    """

    def __init__(self, fetch: Callable[[Edge], Tensor]) -> None:
        self._fetch = fetch
        self._there: dict[Key, Tensor] = {}
        self._coming: Iterator[Edge] = iter(())

    def begin(self, edges: Sequence[Edge]) -> None:
        """A pass that reads `edges` in this order, all but the first ahead; () for none."""
        self._there.clear()
        self._coming = iter(edges[1:])

    def ask_next(self, node: Node) -> None:
        """When `node` has asked for its own, and for all else that it waits for."""
        if node.fetched_twice is not None:
            edge = next(self._coming, None)
            if edge is not None:
                self._ask(edge)

    def ask_again(self, node: Node) -> None:
        """For its own, if it was not asked for ahead, and for the next: in a backward pass."""
        if node.fetched_twice is not None:
            self._ask(node.fetched_twice)
            self.ask_next(node)

    def take(self, edge: Edge) -> Tensor:
        self._ask(edge)
        return self._there.pop(edge.key)

    def _ask(self, edge: Edge) -> None:
        if edge.key not in self._there:
            self._there[edge.key] = self._fetch(edge)
