"""The search problem as arrays: what every algorithm sees, and all that it sees.

    cost(s)   = sum_i node_cost[i][s_i]   + sum_(i,j) edge_cost[i,j][s_i, s_j]
    memory(s) = sum_i node_memory[i][s_i] + sum_(i,j) edge_memory[i,j][s_i, s_j]

Find the choice s of least cost (seconds of one iteration) with memory at most `memory_limit` (bytes
of one device). `evaluate` computes both. Equal layers share their tables: variables and edges refer
to them by number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.floating[Any]]
Choice = NDArray[np.int64]
_Uses = tuple[list[tuple[int, Choice]], list[tuple[int, Choice, Choice, Choice]]]
SearchEnd = Literal["done", "budget", "interrupted", "size", "memory"]
# Choices. With 1, planning GPT-0.35B on 2x16 takes 1.2 times as long and ResNet-50 on 2x8 1.6
# times; 8 gain nothing.
_REMEMBERED = 4

# Relative error that single-precision tables of a search leave; nearer costs count as equal.
ROUNDING = 1e-6


def relative_gap(cost: float, lower_bound: float) -> float:
    """cost / lower_bound - 1, exactly 0 where they differ by rounding only; inf if unbounded."""
    if cost <= lower_bound + 4 * ROUNDING * abs(cost):
        return 0.0
    return cost / lower_bound - 1 if lower_bound > 0 else float("inf")


class Edge(NamedTuple):
    """Variables `first` < `second` with edge table number `table`, [first's, second's]."""

    first: int
    second: int
    table: int


@dataclass(frozen=True)
class Problem:
    """Tables, and which variable and edge uses which.

    node_cost, node_memory: per node table [strategies]; edge_cost, edge_memory: [first's, second's]
    nodes:        variable -> node table
    heavy:        variables that head a layer (the coordinates of coordinate descent)
    memory_limit: bytes; inf for none
    cost_limit:   choices that cost as much are of no use: a search may end when none is cheaper
    known_bound:  no choice within the memory limit costs less, as the caller knows
    known_cost:   of a choice within it that the caller has: what is found must be cheaper
    free:         a cheap choice and how much less another one costs at most, whatever their memory,
                  if the caller knows
    """

    node_cost: tuple[Table, ...]
    node_memory: tuple[Table, ...]
    edge_cost: tuple[Table, ...]
    edge_memory: tuple[Table, ...]
    nodes: tuple[int, ...]
    edges: tuple[Edge, ...]
    heavy: frozenset[int] = frozenset()
    memory_limit: float = float("inf")
    cost_limit: float = float("inf")
    known_bound: float = float("-inf")
    known_cost: float = float("inf")
    free: tuple[Choice, float] | None = None

    @property
    def num_variables(self) -> int:
        return len(self.nodes)

    def sizes(self) -> tuple[int, ...]:
        """Number of strategies of each variable."""
        return tuple(len(self.node_cost[t]) for t in self.nodes)

    @cached_property
    def neighbours(self) -> tuple[tuple[tuple[int, int, bool], ...], ...]:
        """For each variable its (other variable, edge table, is the first) triples."""
        found: list[list[tuple[int, int, bool]]] = [[] for _ in self.nodes]
        for edge in self.edges:
            found[edge.first].append((edge.second, edge.table, True))
            found[edge.second].append((edge.first, edge.table, False))
        return tuple(map(tuple, found))

    def line(self, choice: Choice | Sequence[int], variable: int) -> tuple[Table, Table]:
        """(cost, memory) of each strategy of `variable` and of its edges, the others as chosen."""
        table = self.nodes[variable]
        cost, memory = self.node_cost[table].copy(), self.node_memory[table].copy()
        for other, edge, is_first in self.neighbours[variable]:
            at = choice[other]
            if is_first:
                cost += self.edge_cost[edge][:, at]
                memory += self.edge_memory[edge][:, at]
            else:
                cost += self.edge_cost[edge][at]
                memory += self.edge_memory[edge][at]
        return cost, memory

    def least(self) -> tuple[float, float]:
        """(cost, memory) that no choice falls below: each table's least entry, summed."""
        cost = sum(float(self.node_cost[t].min()) for t in self.nodes)
        memory = sum(float(self.node_memory[t].min()) for t in self.nodes)
        cost += sum(float(self.edge_cost[e.table].min()) for e in self.edges)
        memory += sum(float(self.edge_memory[e.table].min()) for e in self.edges)
        return cost, memory

    def restricted(self, keep: Sequence[NDArray[np.int64]]) -> Problem:
        """The problem with the strategies `keep[t]` only of each node table t."""
        number_of, edges = self._sides, self.edges
        if any(key[0] != number for key, number in number_of.items()):
            edges = tuple(
                Edge(edge.first, edge.second, number_of[self._side(edge)]) for edge in edges
            )
        return dataclasses.replace(
            self,
            node_cost=tuple(c[k] for c, k in zip(self.node_cost, keep, strict=True)),
            node_memory=tuple(m[k] for m, k in zip(self.node_memory, keep, strict=True)),
            edge_cost=tuple(self.edge_cost[t][np.ix_(keep[a], keep[b])] for t, a, b in number_of),
            edge_memory=tuple(
                self.edge_memory[t][np.ix_(keep[a], keep[b])] for t, a, b in number_of
            ),
            edges=edges,
            free=None,
        )

    def _side(self, edge: Edge) -> tuple[int, int, int]:
        """Its table, and the node tables of its ends."""
        return edge.table, self.nodes[edge.first], self.nodes[edge.second]

    @cached_property
    def _sides(self) -> dict[tuple[int, int, int], int]:
        """The distinct ones of all edges, numbered in order of appearance."""
        distinct = dict.fromkeys(map(self._side, self.edges))
        return {side: number for number, side in enumerate(distinct)}

    def evaluate(self, choice: Choice) -> tuple[float, float]:
        """(cost in seconds, memory in bytes) of a choice."""
        key, known = choice.tobytes(), self._evaluated
        if key not in known:
            costs, memories = self.terms(choice, choice, choice)
            if len(known) == _REMEMBERED:
                del known[next(iter(known))]
            known[key] = _in_turn(costs), _in_turn(memories)
        return known[key]

    def evaluate_all(self, choices: Choice) -> tuple[Table, Table]:
        """(cost, memory) of each of several choices.

        choices: [choices, variables]
        """
        cost, memory = np.zeros((2, len(choices)))
        for variable, table in enumerate(self.nodes):
            at = choices[:, variable]
            cost += self.node_cost[table][at]
            memory += self.node_memory[table][at]
        for first, second, table in self.edges:
            both = choices[:, first], choices[:, second]
            cost += self.edge_cost[table][both]
            memory += self.edge_memory[table][both]
        return cost, memory

    @cached_property
    def _evaluated(self) -> dict[bytes, tuple[float, float]]:
        """The last choices and what `evaluate` gave: most are asked for several times in a row."""
        return {}

    def terms(self, nodes: Choice, firsts: Choice, seconds: Choice) -> tuple[Table, Table]:
        """(cost, memory) of each variable, then of each edge.

        Variables are as in `nodes`, an edge's ends as in `firsts` and `seconds`.
        """
        found = np.empty((2, len(self.nodes) + len(self.edges)))
        variables, edges = self._uses
        for table, own in variables:
            at = nodes[own]
            found[0, own], found[1, own] = self.node_cost[table][at], self.node_memory[table][at]
        for table, own, first, second in edges:
            at = firsts[first], seconds[second]
            found[0, own], found[1, own] = self.edge_cost[table][at], self.edge_memory[table][at]
        return found[0], found[1]

    @cached_property
    def _uses(self) -> _Uses:
        return _uses_of(self.nodes, self.edges)


@lru_cache(maxsize=8)
def _uses_of(nodes: tuple[int, ...], edges: tuple[Edge, ...]) -> _Uses:
    """Each node table's variables, and each edge table's edges with their ends.

    Edges are numbered on after the variables.
    """
    of_node, ends_of = np.array(nodes, dtype=np.int64), np.array(edges, dtype=np.int64)
    firsts, seconds, of_edge = ends_of.reshape(-1, 3).T
    variables = [(table, np.flatnonzero(of_node == table)) for table in sorted(set(nodes))]
    ends = []
    for table in np.unique(of_edge).tolist():
        own = np.flatnonzero(of_edge == table)
        ends.append((table, own + len(nodes), firsts[own], seconds[own]))
    return variables, ends


def _in_turn(terms: Table) -> float:
    """Their sum, from the first to the last."""
    return float(np.cumsum(terms)[-1]) if len(terms) else 0.0


@dataclass(frozen=True)
class CurvePoint:
    """After so many evaluations and seconds the best choice cost `cost` seconds an iteration."""

    evaluations: int
    seconds: float
    cost: float


@dataclass(frozen=True)
class SearchResult:
    """What an algorithm found.

    choice:      strategy number per variable
    cost:        seconds; memory: bytes
    evaluations: number of choices, line searches or branches that were priced
    lower_bound: no choice within the limit costs less (-inf if the algorithm proves nothing)
    free_cost:   cost of the best choice found with memory ignored
    curve:       each improvement; costs fall
    end:         "done", or what stopped the search: its budget, the user, its tables' size;
                 "memory": the bound is of a higher limit than the choice, and leaves a gap
    seconds:     that the search took
    earlier:     the last choices that were the best before this one, the cheapest first
    """

    choice: Choice
    cost: float
    memory: float
    evaluations: int
    algorithm: str
    lower_bound: float = float("-inf")
    free_cost: float = 0.0
    curve: tuple[CurvePoint, ...] = ()
    end: SearchEnd = "done"
    seconds: float = 0.0
    earlier: tuple[Choice, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """Whether its budget ended or the user stopped it."""
        return self.end in ("budget", "interrupted")

    @property
    def gap(self) -> float:
        """Fraction by which a better choice may be cheaper than this one's cost; inf if unknown."""
        return relative_gap(self.cost, self.lower_bound)


def draw(problem: Problem, rng: np.random.Generator) -> Choice:
    """A uniform choice."""
    return np.array([rng.integers(size) for size in problem.sizes()], dtype=np.int64)
