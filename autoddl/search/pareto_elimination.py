"""The optimum within a memory limit, by elimination with sets of (cost, memory) for numbers.

At a price of memory elimination keeps the least score of each entry of each table. Here an entry
keeps its front: every pair (cost, memory) of which no other is better in both (`pareto`), so that
the limit can be decided at the end. Fronts stay short because most pairs can never be part of a
choice better than the best known: the pair's score and the entry's context (`reduced_costs`, the
least score of the rest) must together stay below that one's.

`least_within` runs through the operations of one elimination and back. Of the last sum only the
cheapest within the limit is made: for each pair of the one side, with that of the most memory that
the limit leaves for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .._native.library import loops
from .budget import TooMany
from .elimination import Elimination
from .elimination_order import Program, Step
from .pareto import (
    Fronts,
    Matches,
    Numbers,
    Pairs,
    apart,
    counts_below,
    in_loops,
    on_arrays,
)
from .problem import ROUNDING, Choice, Problem, Table
from .reduced_costs import ReducedCosts

# Pairs, of which a small loss is allowed. Half and twice as many, and no loss at all, gave the same
# plan of GPT-0.35B on 2x16, as fast.
_LONG = 50_000
_CUBE = 4_000_000  # sums of three tables' entries that are looked at together
_NEAR = 1e-6  # relative: a sum that was made of others, made again
_MARGIN = 1e-12  # relative: sums of memory differ by as much by their order


@dataclass(frozen=True)
class Least:
    """choice: None if there is none; work: pairs that were looked at."""

    choice: Choice | None
    work: int


@dataclass
class _Sums:
    """Adds fronts; keeps what may be part of a choice of score at most `ceiling`.

    left: pairs that may still be looked at
    loss: seconds that what is left may cost more than what is dropped
    to_come: sums of fronts that share it, at least as many as are to be made
    uses: of the table that is made
    """

    price: float
    ceiling: float
    left: int
    loss: float
    to_come: int
    uses: int = 0

    def count(self, pairs: int) -> None:
        self.left -= pairs
        if self.left < 0:
            raise TooMany

    def fronts(
        self, context: Table, first: Fronts, second: Fronts, at: tuple[Numbers, Numbers, Numbers]
    ) -> Fronts:
        """All sums of two pairs for each match (entry of first, entry of second, entry made).

        context: the least score through each of the entries made
        """
        room = self.ceiling - context.ravel()[at[2]].astype(np.float64)
        matches = Matches(first, second, *at, room)
        compiled = loops()
        looked, entry, pairs = (
            on_arrays(matches, self.left)
            if compiled is None
            else in_loops(compiled, matches, self.left)
        )
        self.count(looked)
        if looked > _LONG and self.uses > 0 and self.loss > 0.0:
            share = self.loss / self.to_come
            keep = apart(entry, pairs, share / self.uses)
            self.loss -= share
            entry, pairs = entry[keep], pairs.take(keep, axis=0)
        self.to_come -= 1
        return Fronts.of(context.size, entry, pairs, self.price)

    def cheapest(
        self,
        most: float,
        size: int,
        first: Fronts,
        second: Fronts,
        at: tuple[Numbers, Numbers, Numbers],
    ) -> Fronts:
        """`fronts` of so many entries, but of each only the cheapest sum of at most `most` memory.

        That is of a pair of the first and the second's of the most memory that it leaves.
        """
        matches = Matches(first, second, *at, np.zeros(0))
        match, number = matches.numbers
        self.count(len(number) + len(second.pairs))
        two, made = matches.two[match], matches.made[match]
        counts = counts_below(second, second.pairs[:, 1], two, most - first.pairs[number, 1])
        fits = np.flatnonzero(counts)
        at_most = second.start[two[fits]] + counts[fits] - 1
        summed = first.pairs[number[fits]] + second.pairs[at_most]
        order = np.lexsort((summed[:, 0], made[fits]))
        entry, best = np.unique(made[fits][order], return_index=True)
        return Fronts.of(size, entry, summed[order[best]], self.price)


def least_within(
    problem: Problem,
    state: Elimination,
    contexts: ReducedCosts,
    price: float,
    best: float,
    work: int,
    loss: float = 0.0,
    check: Callable[[], None] = lambda: None,
) -> Least:
    """The cheapest choice within the limit if it costs less than `best`, else None.

    It may cost so much as `loss` more than the cheapest, and be None if that costs no less than
    `best - loss`.

    state:    of the problem, complete, at that price of memory; contexts: its
    work:     pairs to look at, at most
    check:    called now and then, may raise
    Raises TooMany.
    """
    ceiling = _ceiling(best, price, problem.memory_limit)
    sums = _Sums(price, ceiling, work, loss, 2 * len(state.order.steps))
    made: list[Fronts] = []  # by slot
    costs = [*problem.node_cost, *problem.edge_cost]
    memories = [*problem.node_memory, *problem.edge_memory]
    for slot, (cost, memory) in enumerate(zip(costs, memories, strict=True)):
        alive = np.flatnonzero(contexts.through(slot).ravel() <= ceiling)
        pairs = np.stack([cost.ravel()[alive], memory.ravel()[alive]], axis=1)
        made.append(Fronts.of(cost.size, alive, pairs, price))
    uses, last = _uses(state.order), max(state.order.roots, default=-1)
    limit = problem.memory_limit * (1 - 2 * _MARGIN)
    for step in state.order.steps:
        check()
        sums.uses = uses[step.out]
        most = _most_memory(state.order, made, limit) if step.out == last else None
        made.append(_made(step, state.tables, made, contexts, sums, most))
    return Least(_Walk(problem, state, made).choose(best), work - sums.left)


def _ceiling(cost: float, price: float, limit: float) -> float:
    """What a choice within the limit scores at most that costs no more than `cost`."""
    ceiling = cost + price * limit
    return ceiling + ROUNDING * abs(ceiling)


def _uses(order: Program) -> list[int]:
    """How many entries of each slot's table a choice uses."""
    uses = [0] * order.slots
    for root in order.roots:
        uses[root] += 1
    for step in reversed(order.steps):
        for arg in step.args:
            uses[arg] += uses[step.out]
    return uses


def _most_memory(order: Program, made: Sequence[Fronts], limit: float) -> float | None:
    """Memory that the other roots leave for the last one, if it decides alone; else None."""
    others = [made[root] for root in sorted(order.roots)[:-1] if root < len(made)]
    if len(others) < len(order.roots) - 1 or any(len(front.pairs) != 1 for front in others):
        return None
    return limit - sum(float(front.pairs[0, 1]) for front in others)


def _made(
    step: Step,
    tables: Sequence[Table],
    made: Sequence[Fronts],
    contexts: ReducedCosts,
    sums: _Sums,
    most: float | None,
) -> Fronts:
    """The fronts of the table that is made.

    tables, made: by slot; most: of entries only the cheapest of at most so much memory are asked
    """
    fronts, args = [made[slot] for slot in step.args], [tables[slot] for slot in step.args]
    shape = args[0].shape
    if step.kind == "transpose":
        (old,) = fronts
        row, column = np.divmod(old.entry, shape[1])
        entry = column * shape[0] + row
        order = entry.argsort(kind="stable")
        return Fronts.of(old.start.size - 1, entry[order], old.pairs[order], sums.price)
    context = contexts.of(step.out)
    if step.kind == "add":
        both = fronts[0].filled[fronts[1].alive(fronts[0].filled)]
        return sums.fronts(context, fronts[0], fronts[1], (both, both, both))
    if step.kind == "absorb":
        node, edge, _ = args
        entries, strategy, _ = _alive(fronts[1], fronts[2], 1, edge.shape)
        rows = entries // edge.shape[1]
        onward = sums.fronts(context + node, fronts[1], fronts[2], (entries, strategy, rows))
        rows = onward.filled[fronts[0].alive(onward.filled)]
        if most is not None:
            return sums.cheapest(most, len(node), onward, fronts[0], (rows, rows, rows))
        return sums.fronts(context, onward, fronts[0], (rows, rows, rows))
    _, node, right = args
    inner = _alive(fronts[2], fronts[1], 0, right.shape)
    rest = contexts.of(step.args[2]) - node[:, None]
    onward = sums.fronts(rest, fronts[2], fronts[1], inner)
    return sums.fronts(context, fronts[0], onward, _triples(args, context, fronts[0], onward, sums))


def _alive(
    edges: Fronts, nodes: Fronts, axis: int, shape: tuple[int, ...]
) -> tuple[Numbers, Numbers, Numbers]:
    """The entries of `edges` whose strategy on `axis` is alive in `nodes`, and that strategy."""
    strategy = np.divmod(edges.filled, shape[1])[axis]
    is_there = nodes.alive(strategy)
    entries = edges.filled[is_there]
    return entries, strategy[is_there], entries


def _triples(
    args: Sequence[Table], context: Table, first: Fronts, onward: Fronts, sums: _Sums
) -> tuple[Numbers, Numbers, Numbers]:
    """Entries (i, s) of the left side, (s, j) of the right one, and (i, j), of low enough score."""
    left, node, right = args
    rows, inner = left.shape
    columns = right.shape[1]
    onto = np.full(left.shape, np.inf)
    onto.ravel()[first.entry] = left.ravel()[first.entry]
    on = np.full(right.shape, np.inf)
    on.ravel()[onward.entry] = right.ravel()[onward.entry]
    onto = onto + node
    room = sums.ceiling - context
    found: list[tuple[Numbers, ...]] = []
    step = max(1, _CUBE // max(1, inner * columns))
    for low in range(0, rows, step):
        cube = onto[low : low + step, :, None] + on <= room[low : low + step, None, :]
        i, s, j = np.nonzero(cube)
        found.append((i + low, s, j))
    i, s, j = (np.concatenate(parts) for parts in zip(*found, strict=True))
    sums.count(len(i))
    return i * inner + s, s * columns + j, i * columns + j


@dataclass
class _Walk:
    """Back through the removals: which pair of which entry made up the chosen one."""

    problem: Problem
    state: Elimination
    fronts: Sequence[Fronts]  # by slot

    def choose(self, best: float) -> Choice | None:
        roots = [self.fronts[root] for root in self.state.order.roots]
        totals = np.zeros((1, 2))
        for root in roots:
            totals = _sums(totals, root.pairs)
        fits = totals[totals[:, 1] <= self.problem.memory_limit * (1 - _MARGIN)]
        if not len(fits) or fits[:, 0].min() >= best:
            return None
        return self._expand(fits[fits[:, 0].argmin()])

    def _expand(self, target: Pairs) -> Choice:
        state = self.state
        choice = np.full(state.num_variables, -1, dtype=np.int64)
        nodes: dict[int, Pairs] = {}  # the pair that each chosen variable's scores stand for
        edges: dict[frozenset[int], Pairs] = {}
        roots = [r for r in state.order.removed if not r.neighbours]
        fronts = [self.fronts[root.node] for root in roots]
        falling = [np.argsort(-front.pairs[:, 0]) for front in fronts]
        columns = zip(fronts, falling, strict=True)
        _, picked = _nearest(target, [front.pairs[order] for front, order in columns])
        for root, front, order, (number, pair) in zip(roots, fronts, falling, picked, strict=True):
            choice[root.variable], nodes[root.variable] = front.entry[order[number]], pair
        for removal in reversed(state.order.removed):
            variable, others = removal.variable, [other for other, _ in removal.neighbours]
            if not others:
                continue
            at = [int(choice[other]) for other in others]
            wide = len(state.tables[removal.node])
            before = np.zeros((1, 2))
            if removal.before is not None:
                columns = state.tables[removal.before].shape[-1]
                number = at[0] if len(at) == 1 else at[0] * columns + at[1]
                before = self.fronts[removal.before].at(number)
            whole = nodes[others[0]] if len(others) == 1 else edges.pop(frozenset(others))
            own = self.fronts[removal.node]
            sides = [self.fronts[edge] for _, edge in removal.neighbours]
            options = []
            for strategy in range(wide):
                here = [side.at(row * wide + strategy) for side, row in zip(sides, at, strict=True)]
                parts = [before, own.at(strategy), *here]
                if all(map(len, parts)):
                    options.append((strategy, parts))
            strategy, found = _decompose(whole, options)
            choice[variable], nodes[variable] = strategy, found[1][1]
            for other, (_, pair) in zip(others, found[2:], strict=True):
                edges[frozenset((other, variable))] = pair
            if len(others) == 1:
                nodes[others[0]] = found[0][1]
            elif removal.before is not None:
                edges[frozenset(others)] = found[0][1]
        return choice


def _sums(*parts: Pairs) -> Pairs:
    """All sums of one pair of each part."""
    total = np.zeros((1, 2))
    for part in parts:
        total = (total[:, None, :] + part[None, :, :]).reshape(-1, 2)
    return total


def _decompose(
    whole: Pairs, options: Sequence[tuple[int, Sequence[Pairs]]]
) -> tuple[int, list[tuple[int, Pairs]]]:
    """The option, and the number and pair of each of its parts, whose sum is nearest to `whole`.

    The parts are fronts: the more memory, the less cost.
    """
    best, found = _NEAR, (-1, [])
    for name, parts in options:
        if _reaches(whole, parts):
            error, picked = _nearest(whole, parts)
            if error < best:
                best, found = error, (name, picked)
    assert best < _NEAR, "the parts of a pair are among the fronts that it was made of"
    return found


def _reaches(whole: Pairs, parts: Sequence[Pairs]) -> bool:
    """Whether `whole` is, nearly, between the ends of the sums of these fronts."""
    ends = [(*part[0].tolist(), *part[-1].tolist()) for part in parts]
    most_cost, least_memory, least_cost, most_memory = map(sum, zip(*ends, strict=True))
    cost, memory = whole.tolist()
    cost_slack, memory_slack = _NEAR * abs(cost), _NEAR * abs(memory)
    return (
        least_cost - cost_slack <= cost <= most_cost + cost_slack
        and least_memory - memory_slack <= memory <= most_memory + memory_slack
    )


def _nearest(whole: Pairs, parts: Sequence[Pairs]) -> tuple[float, list[tuple[int, Pairs]]]:
    """How far, relatively, and the number and pair of each part; of falling costs."""
    scale = np.abs(whole) + 1e-300
    largest = max(range(len(parts)), key=lambda n: len(parts[n]))
    others = [part for n, part in enumerate(parts) if n != largest]
    rest, rising = whole - _sums(*others), parts[largest][::-1]
    before = np.searchsorted(rising[:, 0], rest[:, 0]) - 1
    # costs differ, so the pair is the nearest in cost
    number = np.clip(before + np.arange(3)[:, None], 0, len(rising) - 1)
    error = (np.abs(rising[number] - rest) / scale).sum(axis=2)
    shift, at = np.unravel_index(int(error.argmin()), error.shape)
    index = [int(i) for i in np.unravel_index(at, tuple(map(len, others)))]
    index.insert(largest, len(rising) - 1 - int(number[shift, at]))
    picked = zip(parts, index, strict=True)
    return float(error[shift, at]), [(i, part[i]) for part, i in picked]
