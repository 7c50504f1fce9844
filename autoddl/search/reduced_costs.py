"""The least score of a whole solution through each entry of each table: reduced costs.

Elimination computes the optimum f from the tables by sums and minima. Backwards through the same
operations runs, for every entry x of every table, its context

    context(x) = the least score of all the rest, of the solutions that use x,

so that table + context is the least score of a solution through x: as reverse-mode differentiation
with (min, +) in place of (+, *). For T[i, j] = min_s L[i, s] + v[s] + R[s, j] that is

    context_L[i, s] = min_j context_T[i, j] + R[s, j] + v[s]      and so on.

A table that several variables or edges share gets the least over all its uses. `ReducedCosts` takes
about twice as long as the elimination.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .budget import Progress, TooMany
from .elimination import Elimination, eliminate, min_plus
from .elimination_order import program, without_fixed_cycles
from .messages import Messages, Solved, solve
from .problem import ROUNDING, Choice, Edge, Problem, Table

Numbers = NDArray[np.int64]
Pair = tuple[Numbers, Numbers]  # of each strategy that of the first variable and of the second
# Of two variables: products of tables of more take seconds. 500 and 2,000 gave the same plans of
# EfficientNet-B0 and HRNet on 2x8, in times within 5 %.
_MOST_PAIRS = 1_000


class ReducedCosts:
    """Context of each table of an elimination.

    Where it left variables over, contexts are bounds, from the messages among these.

    messages:   between the variables that are left
    nodes_only: none of the problem's edge tables, which takes about half of the products
    """

    def __init__(
        self, state: Elimination, messages: Messages | None = None, *, nodes_only: bool = False
    ) -> None:
        assert messages is not None or not state.node, "variables are left"
        self._tables = state.tables
        self._of: dict[int, Table] = {}  # by slot
        order = state.order
        self._wanted = set(range(order.sizes[0] if nodes_only else order.slots))
        for step in order.steps:
            if not self._wanted.isdisjoint(step.args):
                self._wanted.add(step.out)
        bound, through = (0.0, iter(())) if messages is None else messages.through()
        for slot, scores in through:
            table = state.tables[slot]
            possible = np.isfinite(table)
            others = np.subtract(scores, table, where=possible, out=np.full(table.shape, np.inf))
            self._give(slot, state.constant + others)
        for root in order.roots:
            table = state.tables[root]
            self._give(root, np.full(len(table), state.constant + bound - table.min()))
        for step in reversed(order.steps):
            context = self._of.get(step.out)
            if context is None:
                continue
            tables = [state.tables[slot] for slot in step.args]
            if step.kind == "transpose":
                self._give(step.args[0], context.T)
            elif step.kind == "add":
                first, second = step.args
                self._give(first, context + tables[1])
                self._give(second, context + tables[0])
            elif step.kind == "absorb":
                node, edge, leaf = tables
                for_node, for_edge, for_leaf = step.args
                self._give(for_node, context + (edge + leaf).min(axis=1))
                rest = (context + node)[:, None] + edge
                self._give(for_leaf, rest.min(axis=0))
                self._give(for_edge, (context + node)[:, None] + leaf)
            else:
                left, node, right = tables
                for_left, for_node, for_right = step.args
                wants_right = for_right in self._wanted
                wants_left = for_left in self._wanted or not wants_right  # one tells the node's
                if wants_left:
                    through = min_plus(context, np.zeros(context.shape[1]), right.T)
                    self._give(for_left, through + node)
                    self._give(for_node, (through + left).min(axis=0))
                if wants_right:
                    onward = min_plus(left.T, np.zeros(context.shape[0]), context)
                    self._give(for_right, onward + node[:, None])
                    if not wants_left:
                        self._give(for_node, (onward + right).min(axis=1))

    def _give(self, slot: int, context: Table) -> None:
        if slot not in self._wanted:
            return
        known = self._of.get(slot)
        self._of[slot] = context if known is None else np.minimum(known, context)

    def of(self, slot: int) -> Table:
        """Context of each entry; inf for a table that no solution uses, or that is not wanted."""
        found = self._of.get(slot)
        return np.full(self._tables[slot].shape, np.inf) if found is None else found

    def through(self, slot: int) -> Table:
        """The least score of a solution through each entry."""
        return self._tables[slot] + self.of(slot)


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
        self._last: tuple[float, float, Solved] | None = None

    @staticmethod
    def of(problem: Problem) -> Restricted:
        """The whole problem, nothing restricted yet."""
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

    def solved(self, price: float, run: Progress, gap: float = 0.0) -> Solved:
        """The best choice at a price that is found; the last one is remembered.

        gap: that is small enough, as a part of the cost; a smaller one is as good
        """
        if self._last is None or self._last[0] != price or self._last[1] > gap:
            self._last = None  # one elimination's tables at a time: 1.7 GB of Mixtral on 128x8
            state = eliminate(self.problem, price, frozenset())
            found = solve(state, run.spend, gap)
            self._last = price, gap if found.short else 0.0, found
        return self._last[2]

    def among(self, chosen: Sequence[NDArray[np.int64]]) -> Restricted:
        """The problem with only these of its strategies."""
        kept = tuple(numbers[own] for numbers, own in zip(self.kept, chosen, strict=True))
        return replace(self, problem=self.problem.restricted(chosen), kept=kept)

    def below(self, price: float, cost: float, run: Progress) -> Restricted | None:
        """Without the strategies of which nothing that costs less than `cost` can be made.

        None if nothing can; the bound of the run is then raised to that.
        """
        reduced, most = self._reduced(price, cost, run, nodes_only=True)
        found = [np.flatnonzero(reduced.through(t) <= most) for t in range(len(self.kept))]
        if any(not len(found[table]) for table in set(self.problem.nodes)):
            run.raise_bound(min(cost, self.ceiling))
            return None
        return replace(self.among(found), ceiling=min(cost, self.ceiling))

    def loosened(self) -> Restricted:
        """The problem with no cycle through a variable that has one strategy only."""
        problem = without_fixed_cycles(self.problem)
        kept_of = dict(zip(problem.nodes, self.problem.nodes, strict=True))
        kept = tuple(self.kept[kept_of[table]] for table in range(len(problem.node_cost)))
        return replace(self, problem=problem, kept=kept)

    def merged(self, price: float, cost: float, run: Progress) -> Restricted | None:
        """The problem in which some pairs of the variables left by elimination are one variable.

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

    def _reduced(
        self, price: float, cost: float, run: Progress, nodes_only: bool = False
    ) -> tuple[ReducedCosts, float]:
        """Reduced costs at a price, and the most that a choice scores which costs less."""
        run.spend()
        solved = self.solved(price, run)
        most = cost + (price * self.whole.memory_limit if price else 0.0)  # the limit may be inf
        most += ROUNDING * abs(most)
        return ReducedCosts(solved.state, solved.messages, nodes_only=nodes_only), most

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
_Node = tuple[tuple[tuple[int, _Side], ...], tuple[tuple[int, bool], ...]]  # own, and inside
_Wire = tuple[int, bool, _Side, _Side]  # its table, whether it turns, its ends


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
    inside: dict[int, list[tuple[int, bool]]] = {position[first]: [] for first in second_of}
    edges: list[tuple[int, int, _Wire]] = []
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
    smaller = dataclasses.replace(
        problem,
        node_cost=_of_nodes(node_of, pairs, problem.node_cost, problem.edge_cost),
        node_memory=_of_nodes(node_of, pairs, problem.node_memory, problem.edge_memory),
        edge_cost=_of_edges(edge_of, pairs, problem.edge_cost),
        edge_memory=_of_edges(edge_of, pairs, problem.edge_memory),
        nodes=tuple(node_of[key] for key in nodes),
        edges=tuple(Edge(low, high, edge_of[key]) for low, high, key in edges),
        heavy=frozenset(),
    )
    strategies = [
        tuple((t, _rows(pairs, side, np.arange(len(problem.node_cost[t])))) for t, side in own)
        for own, _ in node_of
    ]
    return Merged(smaller, tuple(members), tuple(strategies))


def _rows(pairs: Mapping[int, Pair], side: _Side, table: Any) -> Any:
    """The rows of a table of what becomes a variable's strategies."""
    return table if side is None else table[pairs[side[0]][side[1]]]


def _of_nodes(
    kinds: Iterable[_Node], pairs: Mapping[int, Pair], node: Sequence[Table], edge: Sequence[Table]
) -> tuple[Table, ...]:
    """The node table of each kind of new variable: of its one or two old ones, with edges."""
    found = []
    for own, between in kinds:
        total = np.sum([_rows(pairs, side, node[table]) for table, side in own], axis=0)
        for table, is_turned in between:
            _, side = own[0]
            assert side is not None, "only pairs have edges inside"
            left, right = pairs[side[0]]
            total = total + edge[table][(right, left) if is_turned else (left, right)]
        found.append(total)
    return tuple(found)


def _of_edges(
    kinds: Iterable[_Wire], pairs: Mapping[int, Pair], edge: Sequence[Table]
) -> tuple[Table, ...]:
    """The table of each kind of edge between the variables that its ends have become."""
    found = []
    for table, is_turned, first, second in kinds:
        one = _rows(pairs, second, _rows(pairs, first, edge[table]).T)
        found.append(np.ascontiguousarray(one if is_turned else one.T))
    return tuple(found)
