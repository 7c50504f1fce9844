"""The optimum within a memory limit, by elimination with sets of (cost, memory) for numbers.

At a price of memory elimination keeps the least score of each entry of each table. Here an entry
keeps its front: every pair (cost, memory) of which no other is better in both, so that the limit
can be decided at the end. Fronts stay short because most pairs can never be part of a choice better
than the best known: the pair's score and the entry's context (`marginals`, the least score of the
rest) must together stay below that one's.

`least_within` runs through the operations of one elimination and back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cost.gap import ROUNDING
from .eliminate import Elimination
from .marginals import Contexts
from .problem import Choice, Problem, Table

Pairs = NDArray[np.float64]  # [n, 2]: cost, memory; memory ascending, cost descending
Entry = tuple[int, ...]
Front = dict[Entry, Pairs]
_NOTHING: Pairs = np.zeros((1, 2))


class TooMany(Exception):
    """The fronts have more pairs than may be looked at."""


@dataclass
class _Pruner:
    """Keeps what may be part of a choice of score at most `ceiling`; counts the pairs it sees."""

    price: float
    ceiling: float
    left: int

    def count(self, pairs: int) -> None:
        self.left -= pairs
        if self.left < 0:
            raise TooMany

    def front(self, pairs: Iterable[Pairs], context: float) -> Pairs | None:
        """The undominated of `pairs` in an entry of that context; None if there are none."""
        every = np.concatenate(list(pairs))
        self.count(len(every))
        every = every[every[:, 0] + self.price * every[:, 1] + context <= self.ceiling]
        if not len(every):
            return None
        every = every[np.lexsort((every[:, 0], every[:, 1]))]
        before = np.minimum.accumulate(every[:, 0])
        return every[np.concatenate(([True], every[1:, 0] < before[:-1]))]


def _sums(*parts: Pairs) -> Pairs:
    """All sums of one pair of each part."""
    total = parts[0]
    for part in parts[1:]:
        total = (total[:, None, :] + part[None, :, :]).reshape(-1, 2)
    return total


def least_within(
    problem: Problem, state: Elimination, contexts: Contexts, price: float, best: float, work: int
) -> Choice | None:
    """The cheapest choice within the limit if it costs less than `best`, else None.

    state:    of the problem, complete, at that price of memory; contexts: its
    work:     pairs to look at, at most
    Raises TooMany.
    """
    ceiling = best + price * problem.memory_limit
    ceiling += ROUNDING * abs(ceiling)
    pruner = _Pruner(price, ceiling, work)
    fronts: dict[int, Front] = {}

    def first(table: Table, cost: Table, memory: Table) -> None:
        alive = np.argwhere(contexts.through(table) <= ceiling)
        pruner.count(len(alive))
        found = fronts.setdefault(id(table), {})
        for entry in map(tuple, alive.tolist()):
            found[entry] = np.array([[cost[entry], memory[entry]]])

    for number, table in enumerate(state.nodes):
        first(table, problem.node_cost[number], problem.node_memory[number])
    for number, table in enumerate(state.pairs):
        first(table, problem.edge_cost[number], problem.edge_memory[number])
    for operation in state.tape:
        args = [fronts[id(arg)] for arg in operation.args]
        context = contexts.of(operation.out)
        gathered: dict[Entry, list[Pairs]] = {}
        if operation.kind == "transpose":
            fronts[id(operation.out)] = {entry[::-1]: pairs for entry, pairs in args[0].items()}
            continue
        if operation.kind == "add":
            for entry in args[0].keys() & args[1].keys():
                gathered[entry] = [_sums(args[0][entry], args[1][entry])]
        elif operation.kind == "absorb":
            node, edge, leaf = args
            for (i, s), pairs in edge.items():
                if (i,) in node and (s,) in leaf:
                    gathered.setdefault((i,), []).append(_sums(node[i,], pairs, leaf[s,]))
        else:
            left, node, right = args
            onward: dict[int, list[tuple[int, Pairs]]] = {}
            for (s, j), pairs in right.items():
                if (s,) in node:
                    onward.setdefault(s, []).append((j, _sums(node[s,], pairs)))
            for (i, s), pairs in left.items():
                pruner.count(len(onward.get(s, ())))
                for j, rest in onward.get(s, ()):
                    if operation.out[i, j] + context[i, j] <= ceiling:
                        gathered.setdefault((i, j), []).append(_sums(pairs, rest))
        made = {e: pruner.front(pairs, float(context[e])) for e, pairs in gathered.items()}
        fronts[id(operation.out)] = {e: pairs for e, pairs in made.items() if pairs is not None}
    return _Walk(problem, state, fronts).choose(best)


@dataclass
class _Walk:
    """Back through the removals: which pair of which entry made up the chosen one."""

    problem: Problem
    state: Elimination
    fronts: dict[int, Front]

    def choose(self, best: float) -> Choice | None:
        state = self.state
        roots = [self.fronts[id(root)] for root in state.roots]
        totals = _NOTHING
        for front in roots:
            if not front:
                return None
            totals = _sums(totals, np.concatenate(list(front.values())))
        fits = totals[totals[:, 1] <= self.problem.memory_limit * (1 - 1e-12)]
        if not len(fits) or fits[:, 0].min() >= best:
            return None
        return self._expand(fits[fits[:, 0].argmin()])

    def _expand(self, target: Pairs) -> Choice:
        state = self.state
        choice = np.full(state.num_variables, -1, dtype=np.int64)
        nodes: dict[int, Pairs] = {}  # the pair that each chosen variable's scores stand for
        edges: dict[frozenset[int], Pairs] = {}
        roots = [r for r in state.removed if not r.neighbours]
        picked = _pick(target, [_entries(self.fronts[id(root.node)]) for root in roots])
        for root, (entry, pair) in zip(roots, picked, strict=True):
            choice[root.variable], nodes[root.variable] = entry[0], pair
        for removal in reversed(state.removed):
            variable, others = removal.variable, [other for other, _ in removal.neighbours]
            at = [int(choice[other]) for other in others]
            own = _entries(self.fronts[id(removal.node)])
            sides = [
                {e[1]: pairs for e, pairs in self.fronts[id(edge)].items() if e[0] == here}
                for (_, edge), here in zip(removal.neighbours, at, strict=True)
            ]
            if not others:
                continue
            if len(others) == 1:
                assert removal.before is not None
                before = self.fronts[id(removal.before)][(at[0],)]
                whole = nodes[others[0]]
            else:
                before = _NOTHING
                if removal.before is not None:
                    before = self.fronts[id(removal.before)][(at[0], at[1])]
                whole = edges.pop(frozenset(others))
            options = []
            for (strategy,), pairs in own:
                if all(strategy in side for side in sides):
                    parts = [before, pairs, *(side[strategy] for side in sides)]
                    options.append((strategy, parts))
            strategy, found = _decompose(whole, options)
            choice[variable], nodes[variable] = strategy, found[1]
            for other, pair in zip(others, found[2:], strict=True):
                edges[frozenset((other, variable))] = pair
            if len(others) == 1:
                nodes[others[0]] = found[0]
            elif removal.before is not None:
                edges[frozenset(others)] = found[0]
        return choice


def _entries(front: Front) -> list[tuple[Entry, Pairs]]:
    return sorted(front.items(), key=lambda item: item[0])


def _pick(target: Pairs, fronts: list[list[tuple[Entry, Pairs]]]) -> list[tuple[Entry, Pairs]]:
    """One pair of each front; together they are `target`."""
    flat = [[(e, p) for e, pairs in front for p in pairs] for front in fronts]
    parts = [np.array([p for _, p in front]) for front in flat]
    _, found = _decompose(target, [(0, parts)])
    return [
        next(item for item in front if (item[1] == pair).all())
        for front, pair in zip(flat, found, strict=True)
    ]


def _decompose(whole: Pairs, options: list[tuple[int, list[Pairs]]]) -> tuple[int, list[Pairs]]:
    """The option, and a pair of each of its parts, whose sum is nearest to `whole`."""
    scale = np.abs(whole) + 1e-300
    best, found = np.inf, (-1, [])
    for number, parts in options:
        error = (np.abs(_sums(*parts) - whole) / scale).sum(axis=1)
        at = int(error.argmin())
        if error[at] < best:
            index = np.unravel_index(at, tuple(len(part) for part in parts))
            best = float(error[at])
            found = number, [part[i] for part, i in zip(parts, index, strict=True)]
    assert best < 1e-6, "the parts of a pair are among the fronts that it was made of"
    return found
