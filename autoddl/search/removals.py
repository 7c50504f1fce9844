"""In what order variables disappear, and which table then comes from which: no numbers yet.

A variable with two neighbours disappears into an edge table between them, with one neighbour into
that one's node table, with none into a constant (`eliminate`). Every table has a slot: the node
tables come first, then the edge tables, then what is made. Equal tables are recognised by their
slots, and each is made once: variables disappear in rounds of non-neighbours, so that a chain of
equal blocks takes the logarithm of its length. The order does not depend on what the tables hold,
so one `Program` serves all prices of memory and all selections of strategies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from .problem import Edge

Kind = Literal["transpose", "add", "absorb", "product"]


@dataclass(frozen=True)
class Making:
    """The table of slot `out` comes by `kind` from those of the slots `args`.

    transpose (edge); add (edge, edge); absorb (node, edge, leaf): node[i] + min_s (edge[i, s] +
    leaf[s]); product (left, node, right).
    """

    kind: Kind
    out: int
    args: tuple[int, ...]


@dataclass(frozen=True)
class Removal:
    """A variable, the slot of its scores, and its neighbours with the edges [neighbour's, its own].

    With one neighbour `before` are that one's scores until then; with two, of the first and second,
    `made` is what the variable leaves between them and `before` the edge that was there, if any.
    """

    variable: int
    node: int
    neighbours: tuple[tuple[int, int], ...]
    before: int | None = None
    made: int | None = None


@dataclass
class Program:
    """node, edges: slots of the variables that remain; roots: of the last one of each component.

    sizes: the problem's numbers of node and edge tables
    """

    sizes: tuple[int, int]
    node: dict[int, int]
    edges: dict[int, dict[int, int]]
    makings: list[Making] = field(default_factory=list)
    removed: list[Removal] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    products: int = 0
    _known: dict[tuple[Kind, tuple[int, ...]], int] = field(default_factory=dict)

    @staticmethod
    def of(nodes: tuple[int, ...], edges: tuple[Edge, ...], sizes: tuple[int, int]) -> Program:
        """All variables and edges of a problem; sizes: its numbers of node and edge tables."""
        order = Program(sizes, dict(enumerate(nodes)), {v: {} for v in range(len(nodes))})
        for edge in edges:
            order.connect(edge.first, edge.second, sizes[0] + edge.table)
        return order

    @property
    def slots(self) -> int:
        """Number of tables."""
        return sum(self.sizes) + len(self.makings)

    @cached_property
    def backwards(self) -> list[tuple[Removal, int, int, int]]:
        """What was removed, the last first; a number that those have of equal tables; neighbours.

        For a neighbour that there is not the variable itself, which then has no strategy yet.
        """
        numbers: dict[tuple[int, ...], int] = {}
        found = []
        for removal in reversed(self.removed):
            slots = removal.node, *(edge for _, edge in removal.neighbours)
            alike = numbers.setdefault(slots, len(numbers))
            others = [other for other, _ in removal.neighbours]
            first, second = (*others, removal.variable, removal.variable)[:2]
            found.append((removal, alike, first, second))
        return found

    def make(self, kind: Kind, *args: int) -> int:
        """The slot of that table."""
        slot = self._known.get((kind, args))
        if slot is None:
            slot = self._known[kind, args] = self.slots
            self.makings.append(Making(kind, slot, args))
            self.products += kind == "product"
            if kind == "transpose":
                self._known.setdefault(("transpose", (slot,)), args[0])
        return slot

    def connect(self, first: int, second: int, slot: int) -> None:
        """Add an edge table [first's, second's]."""
        present = self.edges[first].get(second)
        if present is not None:
            slot = self.make("add", present, slot)
        self.edges[first][second] = slot
        self.edges[second][first] = self.make("transpose", slot)

    def remove(self, variable: int) -> None:
        """Let a variable with at most two neighbours disappear."""
        node = self.node.pop(variable)
        neighbours = sorted(self.edges.pop(variable).items())
        towards = tuple((other, self.edges[other].pop(variable)) for other, _ in neighbours)
        before, made = None, None
        if not neighbours:
            self.roots.append(node)
        elif len(neighbours) == 1:
            other, edge = towards[0]
            before = self.node[other]
            self.node[other] = self.make("absorb", before, edge, node)
        else:
            (first, left), (second, _) = towards
            before = self.edges[first].get(second)
            made = self.make("product", left, node, neighbours[1][1])
            self.connect(first, second, made)
        self.removed.append(Removal(variable, node, towards, before, made))

    def remove_in_rounds(self, keep: frozenset[int]) -> None:
        """Remove what has at most two neighbours outside `keep`, in rounds of non-neighbours."""
        while True:
            blocked: set[int] = set()
            ready = sorted(
                (v for v in self.node if v not in keep and len(self.edges[v]) <= 2),
                key=lambda v: (len(self.edges[v]), v),
            )
            for variable in ready:
                if variable not in blocked and len(self.edges[variable]) <= 2:
                    blocked.update(self.edges[variable])
                    self.remove(variable)
            if not ready:
                return


@lru_cache(maxsize=8)
def program(
    nodes: tuple[int, ...], edges: tuple[Edge, ...], sizes: tuple[int, int], keep: frozenset[int]
) -> Program:
    """Remove every variable outside `keep` that has, or comes to have, at most two neighbours.

    nodes, edges: of the problem; sizes: its numbers of node and edge tables
    """
    order = Program.of(nodes, edges, sizes)
    order.remove_in_rounds(keep)
    return order
