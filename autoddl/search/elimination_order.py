"""In what order variables disappear, and which table then comes from which: no numbers yet.

A variable with two neighbours disappears into an edge table between them, with one neighbour into
that one's node table, with none into a constant (`elimination`). Every table has a slot: the node
tables come first, then the edge tables, then what is made. Equal tables are recognised by their
slots, and each is made once: variables disappear in rounds of non-neighbours, so that a chain of
equal blocks takes the logarithm of its length. The order does not depend on what the tables hold,
so one `Program` serves all prices of memory and all selections of strategies.

For sets of Pareto-optimal sums (`pareto_elimination`) another order is better. Those of tables
[i, j] of many blocks hold all that the blocks make between any two ends, so halving a chain of
blocks sums two long sets at each step. From an end of the chain on, a set is of one variable's
strategies and each sum is of a long set and a short one; and only what the ends cannot make any
better is kept. So in `along_chains`

1. what hangs on the chain, and short cycles such as residual connections, disappear first;
2. then the chain does from both ends, until one sum of two long sets is left in the middle, of
   which only the cheapest within the limit is asked.

A network that is no such chain disappears as far as it can, the rest in rounds. A variable of one
strategy closes no cycle: `without_fixed_cycles` lets go of its edges that would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from .problem import Edge, Problem, Table

Kind = Literal["transpose", "add", "absorb", "product"]
# Edges of a short cycle, such as a residual connection closes. 4 and 16 gave the same plans of
# GPT-0.35B on 2x16 and ResNet-50 on 2x8, in times within 4 %.
_LONGEST = 8


@dataclass(frozen=True)
class Step:
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
    steps: list[Step] = field(default_factory=list)
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
        return sum(self.sizes) + len(self.steps)

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
            self.steps.append(Step(kind, slot, args))
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


@lru_cache(maxsize=8)
def along_chains(
    nodes: tuple[int, ...], edges: tuple[Edge, ...], sizes: tuple[int, int]
) -> Program:
    """The arguments are those of `elimination_order`, which keeps no variable."""
    order = Program.of(nodes, edges, sizes)
    length = 3
    while length <= _LONGEST:
        length = 3 if _remove_from_cycles(order, length) else length + 1
    _remove_from_ends(order)
    order.remove_in_rounds(frozenset())
    return order


def _remove_from_cycles(order: Program, length: int) -> bool:
    """Remove a variable of each cycle of so many edges, and what hangs on others; if there is any.

    In rounds of non-neighbours, lest a chain of cycles disappears from one end.
    """
    ready = []
    for variable, others in order.edges.items():
        hangs = len(others) == 1 and len(order.edges[next(iter(others))]) > 2
        if hangs or (len(others) == 2 and _is_near(order, variable, length - 2)):
            ready.append(variable)
    blocked: set[int] = set()
    for variable in ready:
        if variable not in blocked:
            blocked.update(order.edges[variable])
            order.remove(variable)
    return bool(ready)


def _is_near(order: Program, variable: int, steps: int) -> bool:
    """Whether so many edges lead from one neighbour of `variable` to the other, past it."""
    start, end = order.edges[variable]
    seen, last = {variable, start}, [start]
    for _ in range(steps):
        last = [other for at in last for other in order.edges[at]]
        if end in last:
            return True
        last = [other for other in dict.fromkeys(last) if other not in seen]
        seen.update(last)
    return False


def _remove_from_ends(order: Program) -> None:
    """Remove ends of chains, the one first that stands for the fewest variables."""
    size = dict.fromkeys(order.node, 1)
    ends = {variable for variable in order.node if len(order.edges[variable]) == 1}
    while ends:
        variable = min(ends, key=lambda v: (size[v], v))
        (other,) = order.edges[variable]
        order.remove(variable)
        size[other] += size[variable]
        ends.remove(variable)
        (ends.add if len(order.edges[other]) == 1 else ends.discard)(other)


def without_fixed_cycles(problem: Problem) -> Problem:
    """The same costs and memory of all choices; no cycle leads through variables of one strategy.

    Their edges that would close one are added to the other ends' own tables.
    """
    at_end: list[list[tuple[int, bool]]] = [[] for _ in problem.nodes]  # edge table, is the first
    stay: list[Edge] = []
    parts = _Parts(list(range(problem.num_variables)))
    single = [len(problem.node_cost[table]) == 1 for table in problem.nodes]
    for edge in sorted(problem.edges, key=lambda e: single[e.first] + single[e.second]):
        joined = parts.join(edge.first, edge.second)
        if joined or not (single[edge.first] or single[edge.second]):
            stay.append(edge)
        elif single[edge.first]:
            at_end[edge.second].append((edge.table, False))
        else:
            at_end[edge.first].append((edge.table, True))
    keys = [(t, *sorted(e)) for t, e in zip(problem.nodes, at_end, strict=True)]
    node_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    edge_of = {table: n for n, table in enumerate(dict.fromkeys(e.table for e in stay))}

    def added(nodes: Sequence[Table], edges: Sequence[Table]) -> tuple[Table, ...]:
        """The table of each kind of variable with those of its edges that go added."""
        found = []
        for table, *sides in node_of:
            own = nodes[table]
            for edge, is_first in sides:
                own = own + (edges[edge][:, 0] if is_first else edges[edge][0])
            found.append(own)
        return tuple(found)

    return dataclasses.replace(
        problem,
        node_cost=added(problem.node_cost, problem.edge_cost),
        node_memory=added(problem.node_memory, problem.edge_memory),
        edge_cost=tuple(problem.edge_cost[table] for table in edge_of),
        edge_memory=tuple(problem.edge_memory[table] for table in edge_of),
        nodes=tuple(node_of[key] for key in keys),
        edges=tuple(Edge(e.first, e.second, edge_of[e.table]) for e in stay),
    )


@dataclass(frozen=True)
class _Parts:
    """Connected parts of a graph; above: of each variable another of its part, or itself."""

    above: list[int]

    def join(self, first: int, second: int) -> bool:
        """Connect two variables; whether they were not connected before."""
        tops = self._top(first), self._top(second)
        self.above[tops[1]] = tops[0]
        return tops[0] != tops[1]

    def _top(self, variable: int) -> int:
        while self.above[variable] != variable:
            self.above[variable] = variable = self.above[self.above[variable]]
        return variable
