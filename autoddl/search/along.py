"""An order of elimination along a network, for fronts (`fronts`).

Fronts of tables [i, j] of many blocks hold all that the blocks make between any two ends, so
halving a chain of blocks (`removals.program`) sums two long fronts at each step. From an end of the
chain on, a front is of one variable's strategies and each sum is of a long front and a short one;
and only what the ends cannot make any better is kept. So

1. what hangs on the chain, and short cycles such as residual connections, disappear first;
2. then the chain does from both ends, until one sum of two long fronts is left in the middle, of
   which only the cheapest within the limit is asked.

A network that is no such chain disappears as far as it can, the rest as in `removals.program`. A
variable of one strategy closes no cycle: `loosened` lets go of its edges that would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .eliminate import Elimination, eliminated
from .problem import Edge, Problem, Table
from .removals import Program

_LONGEST = 8  # edges of a short cycle


def eliminated_along(problem: Problem, memory_price: float) -> Elimination:
    """`eliminate` of every variable, in this order."""
    sizes = len(problem.node_cost), len(problem.edge_cost)
    return eliminated(problem, memory_price, along(problem.nodes, problem.edges, sizes))


@lru_cache(maxsize=8)
def along(nodes: tuple[int, ...], edges: tuple[Edge, ...], sizes: tuple[int, int]) -> Program:
    """The arguments are those of `removals.program`, which keeps no variable."""
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


def loosened(problem: Problem) -> Problem:
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
        """Of each kind of variable its own table and those of the edges that go."""
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
