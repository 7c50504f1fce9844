"""A smaller problem that has every choice of the whole one that can still be better.

No choice that costs less than some ceiling has a strategy of which the least score is higher
(`reduced_costs`): `Restricted.below` leaves these out. Where elimination leaves variables over,
`Restricted.merged` joins pairs of them into one variable, whose strategies are the pairs that a
choice below the ceiling may have; where one operator mostly decides what another does these are
hardly more than one operator's own. Each merge tightens the bound of `messages` and leaves fewer
variables, until elimination takes all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget import Progress
from .elimination import eliminate
from .elimination_order import program, without_fixed_cycles
from .messages import Solved, solve
from .pareto import TooMany
from .problem import ROUNDING, Choice, Edge, Problem, Table
from .reduced_costs import ReducedCosts

Numbers = NDArray[np.int64]
Pair = tuple[Numbers, Numbers]  # of each strategy that of the first variable and of the second
_MOST_PAIRS = 1_000  # of two variables: products of tables of more take seconds; chosen


@dataclass
class Restricted:
    """Some strategies of a problem.

    problem: with these only; a variable stands for one of the whole problem or for several
    members: of each variable those that it stands for
    kept:    of each node table [strategies, members]: strategies of the whole problem
    ceiling: every choice of the whole problem that costs less is one of these
    price:   of memory that may be about the best one, if it is not 0
    """

    whole: Problem
    problem: Problem
    members: tuple[tuple[int, ...], ...]
    kept: tuple[NDArray[np.int64], ...]
    ceiling: float = math.inf
    price: float = 0.0

    def __post_init__(self) -> None:
        self._last: tuple[float, Solved] | None = None

    @staticmethod
    def of(problem: Problem) -> Restricted:
        """With all strategies."""
        kept = tuple(np.arange(len(cost))[:, None] for cost in problem.node_cost)
        members = tuple((variable,) for variable in range(problem.num_variables))
        return Restricted(problem, problem, members, kept)

    @property
    def size(self) -> int:
        """Number of strategies."""
        return sum(map(len, self.kept))

    @property
    def leaves_variables(self) -> bool:
        """Whether elimination leaves any over."""
        problem = self.problem
        sizes = len(problem.node_cost), len(problem.edge_cost)
        return bool(program(problem.nodes, problem.edges, sizes, frozenset()).node)

    def solved(self, price: float, run: Progress) -> Solved:
        """The best choice at a price that is found; the last one is remembered."""
        if self._last is None or self._last[0] != price:
            state = eliminate(self.problem, price, frozenset())
            self._last = price, solve(state, run.spend)
        return self._last[1]

    def among(self, chosen: Sequence[NDArray[np.int64]]) -> Restricted:
        """With these of its strategies only."""
        kept = tuple(numbers[own] for numbers, own in zip(self.kept, chosen, strict=True))
        return replace(self, problem=self.problem.restricted(chosen), kept=kept)

    def below(self, price: float, cost: float, run: Progress) -> Restricted | None:
        """Without the strategies of which nothing that costs less than `cost` can be made.

        None if nothing can; the bound of the run is then raised to that.
        """
        reduced, most = self._reduced(price, cost, run)
        found = [np.flatnonzero(reduced.through(t) <= most) for t in range(len(self.kept))]
        if any(not len(found[table]) for table in set(self.problem.nodes)):
            run.raise_bound(min(cost, self.ceiling))
            return None
        return replace(self.among(found), ceiling=min(cost, self.ceiling))

    def loosened(self) -> Restricted:
        """The same, but no cycle leads through a variable of one strategy."""
        problem = without_fixed_cycles(self.problem)
        kept_of = dict(zip(problem.nodes, self.problem.nodes, strict=True))
        kept = tuple(self.kept[kept_of[table]] for table in range(len(problem.node_cost)))
        return replace(self, problem=problem, kept=kept)

    def merged(self, price: float, cost: float, run: Progress) -> Restricted | None:
        """With some pairs of the variables that elimination leaves as one variable each.

        None if nothing costs less than `cost`; the bound of the run is then raised to that. There
        must be variables left. Raises TooMany if each pair would have too many strategies.
        """
        reduced, most = self._reduced(price, cost, run)
        state = self.solved(price, run).state
        sizes = {variable: len(scores) for variable, scores in state.node.items()}
        known: dict[int, Pair] = {}
        candidates: list[tuple[float, int, int, int]] = []
        for first, edges in state.order.edges.items():
            for second, slot in edges.items():
                if first > second:
                    continue
                if slot not in known:
                    rows, columns = np.nonzero(reduced.through(slot) <= most)
                    known[slot] = rows, columns
                count = len(known[slot][0])
                if not count:
                    run.raise_bound(min(cost, self.ceiling))
                    return None
                if count <= _MOST_PAIRS:
                    growth = count / max(sizes[first], sizes[second])
                    candidates.append((growth, first, second, slot))
        chosen: dict[tuple[int, int], int] = {}
        blocked: set[int] = set()
        for _, first, second, slot in sorted(candidates):
            if first not in blocked and second not in blocked:
                chosen[first, second] = slot
                blocked |= {first, second, *state.order.edges[first], *state.order.edges[second]}
        if not chosen:
            raise TooMany
        found = merge(self.problem, chosen, known)
        kept = []
        for parts in found.strategies:
            kept.append(np.hstack([self.kept[table][numbers] for table, numbers in parts]))
        return replace(
            self,
            problem=found.problem,
            members=tuple(sum((self.members[v] for v in own), ()) for own in found.members),
            kept=tuple(kept),
            ceiling=min(cost, self.ceiling),
        )

    def _reduced(self, price: float, cost: float, run: Progress) -> tuple[ReducedCosts, float]:
        """Reduced costs at a price, and the most that a choice scores which costs less."""
        run.spend()
        solved = self.solved(price, run)
        most = cost + (price * self.whole.memory_limit if price else 0.0)  # the limit may be inf
        most += ROUNDING * abs(most)
        return ReducedCosts(solved.state, solved.messages), most

    def original(self, choice: Choice) -> Choice:
        """A choice of the smaller problem in the numbers of the whole one."""
        found = np.empty(self.whole.num_variables, dtype=np.int64)
        pairs = zip(self.problem.nodes, choice, strict=True)
        for members, (table, strategy) in zip(self.members, pairs, strict=True):
            found[list(members)] = self.kept[table][strategy]
        return found


@dataclass(frozen=True)
class Merged:
    """problem: the smaller one.

    members:    of each of its variables, the one or two that it stands for
    strategies: of each of its node tables, for each member that one's table and strategies
    """

    problem: Problem
    members: tuple[tuple[int, ...], ...]
    strategies: tuple[tuple[tuple[int, Numbers], ...], ...]


# Of a variable: the pairs that it is in, and as which of the two; no pairs for one that stays.
_Side = tuple[int, int] | None


def merge(
    problem: Problem, chosen: Mapping[tuple[int, int], int], pairs: Mapping[int, Pair]
) -> Merged:
    """The problem with the variables of each of `chosen` as one, in the place of the first.

    chosen: (first, second) -> number of their `pairs`; no variable is in two of them
    Equal variables and equal edges share their tables, as before.
    """
    sides: dict[int, _Side] = {}
    second_of: dict[int, int] = {}
    for (first, second), number in chosen.items():
        sides[first], sides[second], second_of[first] = (number, 0), (number, 1), second
    gone = set(second_of.values())
    stays = [variable for variable in range(problem.num_variables) if variable not in gone]
    position = {variable: n for n, variable in enumerate(stays)}
    position |= {second: position[first] for first, second in second_of.items()}

    def rows(side: _Side, table: Any) -> Any:
        return table if side is None else table[pairs[side[0]][side[1]]]

    inside: dict[int, list[tuple[int, bool]]] = {position[first]: [] for first in second_of}
    edges: list[tuple[int, int, tuple[int, bool, _Side, _Side]]] = []
    for first, second, table in problem.edges:
        low, high = position[first], position[second]
        if low == high:
            inside[low].append((table, first in gone))
        else:
            key = table, low > high, sides.get(first), sides.get(second)
            edges.append((min(low, high), max(low, high), key))
    members = [(v, second_of[v]) if v in second_of else (v,) for v in stays]
    nodes = [
        (tuple((problem.nodes[v], sides.get(v)) for v in own), tuple(sorted(inside.get(n, ()))))
        for n, own in enumerate(members)
    ]
    node_of = {key: n for n, key in enumerate(dict.fromkeys(nodes))}
    edge_of = {key: n for n, key in enumerate(dict.fromkeys(key for *_, key in edges))}

    def of_nodes(node: Sequence[Table], edge: Sequence[Table]) -> tuple[Table, ...]:
        found = []
        for own, between in node_of:
            total = np.sum([rows(side, node[table]) for table, side in own], axis=0)
            for table, is_turned in between:
                _, side = own[0]
                assert side is not None, "only pairs have edges inside"
                left, right = pairs[side[0]]
                ends = (right, left) if is_turned else (left, right)
                total = total + edge[table][ends]
            found.append(total)
        return tuple(found)

    def of_edges(edge: Sequence[Table]) -> tuple[Table, ...]:
        found = []
        for table, is_turned, first, second in edge_of:
            one = rows(second, rows(first, edge[table]).T)
            found.append(np.ascontiguousarray(one if is_turned else one.T))
        return tuple(found)

    smaller = dataclasses.replace(
        problem,
        node_cost=of_nodes(problem.node_cost, problem.edge_cost),
        node_memory=of_nodes(problem.node_memory, problem.edge_memory),
        edge_cost=of_edges(problem.edge_cost),
        edge_memory=of_edges(problem.edge_memory),
        nodes=tuple(node_of[key] for key in nodes),
        edges=tuple(Edge(low, high, edge_of[key]) for low, high, key in edges),
        heavy=frozenset(),
    )
    strategies = [
        tuple((table, rows(side, np.arange(len(problem.node_cost[table])))) for table, side in own)
        for own, _ in node_of
    ]
    return Merged(smaller, tuple(members), tuple(strategies))
