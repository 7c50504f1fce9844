"""The optimum within a memory limit, by elimination with sets of (cost, memory) for numbers.

At a price of memory elimination keeps the least score of each entry of each table. Here an entry
keeps its front: every pair (cost, memory) of which no other is better in both, so that the limit
can be decided at the end. Fronts stay short because most pairs can never be part of a choice better
than the best known: the pair's score and the entry's context (`marginals`, the least score of the
rest) must together stay below that one's.

`least_within` runs through the operations of one elimination and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cost.gap import ROUNDING
from .eliminate import Elimination
from .marginals import Contexts
from .problem import Choice, Problem, Table
from .removals import Making, Program

Pairs = NDArray[np.float64]  # [n, 2]: cost, memory
Numbers = NDArray[np.int64]
_CHUNK = 2_000_000  # pairs that are looked at together


_BINS = 20_000  # of memory, of an entry
_LONG = 50_000  # pairs, of which a small loss is allowed
_SHARE = 1 / 8  # of the loss that is left
_CUBE = 4_000_000  # sums of three tables' entries that are looked at together


class TooMany(Exception):
    """The fronts have more pairs than may be looked at."""


@dataclass(frozen=True)
class Least:
    """choice: None if there is none; work: pairs that were looked at."""

    choice: Choice | None
    work: int


@dataclass(frozen=True)
class Fronts:
    """The fronts of a table's entries, which are numbered as in its `ravel()`.

    entry: [n] ascending; pairs: [n, 2]; of an entry by ascending score. start: [entries + 1]
    """

    entry: Numbers
    pairs: Pairs
    score: Table
    start: Numbers

    @staticmethod
    def of(size: int, entry: Numbers, pairs: Pairs, price: float) -> Fronts:
        score = pairs[:, 0] + price * pairs[:, 1]
        order = np.lexsort((score, entry))
        entry = entry[order]
        start = np.searchsorted(entry, np.arange(size + 1))
        return Fronts(entry, pairs[order], score[order], start)

    def extreme(self, least: np.ufunc) -> Table:
        """Least (or most, by np.maximum) memory of each entry; any number for one without pairs."""
        found = np.zeros(len(self.start) - 1)
        entries = np.flatnonzero(self.start[1:] > self.start[:-1])
        found[entries] = least.reduceat(self.pairs[:, 1], self.start[entries])
        return found

    def at(self, entry: int) -> Pairs:
        return self.pairs[self.start[entry] : self.start[entry + 1]]


@dataclass
class _Sums:
    """Adds fronts; keeps what may be part of a choice of score at most `ceiling`.

    left: pairs that may still be looked at
    loss: seconds that what is left may cost more than what is dropped
    uses: of the table that is made
    """

    price: float
    ceiling: float
    left: int
    loss: float = 0.0
    uses: int = 0

    def count(self, pairs: int) -> None:
        self.left -= pairs
        if self.left < 0:
            raise TooMany

    def fronts(
        self, context: Table, first: Fronts, second: Fronts, at: tuple[Numbers, Numbers, Numbers]
    ) -> Fronts:
        """Of each match (entry of first, entry of second, entry made) all sums of two pairs.

        context: of the entries made
        """
        one, two, made = at
        rest = context.ravel()[made]
        lengths = first.start[one + 1] - first.start[one]
        match = np.repeat(np.arange(len(one)), lengths)
        number = _within(lengths) + np.repeat(first.start[one], lengths)
        # how many pairs of the second, in the order of scores, keep each of the first's below
        room = self.ceiling - rest[match] - first.score[number]
        counts = _counts_below(second, two[match], room)
        self.count(int(counts.sum()) + len(match))
        ends = np.cumsum(counts)
        step = 0.0
        if self.loss > 0 and self.uses > 0 and counts.sum() > _LONG:
            step = self.loss * _SHARE / self.uses
            self.loss -= step * self.uses
        stairs = _Stairs.of(first, second, at, int(counts.sum()))
        entries: list[Numbers] = []
        pairs: list[Pairs] = []
        low = 0
        while low < len(match):
            before = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + _CHUNK)))
            some = counts[low:high]
            a = np.repeat(number[low:high], some)
            b = np.repeat(second.start[two[match[low:high]]], some) + _within(some)
            entry = np.repeat(made[match[low:high]], some)
            keep, summed = stairs.below(entry, first.pairs[a] + second.pairs[b])
            entry = entry[keep]
            keep = _undominated(entry, summed, 0.0)
            entries.append(entry[keep])
            pairs.append(summed[keep])
            low = high
        return self._joined(context.size, entries, pairs, step)

    def _joined(
        self, size: int, entries: Sequence[Numbers], pairs: Sequence[Pairs], step: float
    ) -> Fronts:
        entry = np.concatenate([np.zeros(0, np.int64), *entries])
        every = np.concatenate([np.zeros((0, 2)), *pairs])
        if len(entries) > 1 or step > 0:
            keep = _undominated(entry, every, step)
            entry, every = entry[keep], every[keep]
        return Fronts.of(size, entry, every, self.price)


@dataclass
class _Stairs:
    """Least costs of what was seen, by entry and bin of memory: drops most dominated pairs fast."""

    entries: Numbers
    low: Table
    scale: Table
    least: Table

    @staticmethod
    def of(
        first: Fronts, second: Fronts, at: tuple[Numbers, Numbers, Numbers], total: int
    ) -> _Stairs:
        one, two, made = at
        entries, local = np.unique(made, return_inverse=True)
        low, high = np.full(len(entries), np.inf), np.full(len(entries), -np.inf)
        np.minimum.at(low, local, first.extreme(np.minimum)[one] + second.extreme(np.minimum)[two])
        np.maximum.at(high, local, first.extreme(np.maximum)[one] + second.extreme(np.maximum)[two])
        bins = max(2, min(_BINS, total // max(1, len(entries))))
        scale = (bins - 1) * 0.999 / np.maximum(high - low, 1.0)
        return _Stairs(entries, low, scale, np.full((len(entries), bins), np.inf))

    def below(self, entry: Numbers, pairs: Pairs) -> tuple[Numbers, Pairs]:
        """Those of which no other has its bin and cost beaten; their numbers, and the pairs."""
        local = np.searchsorted(self.entries, entry)
        bins = self.least.shape[1]
        place = ((pairs[:, 1] - self.low[local]) * self.scale[local]).astype(np.int64)
        place += local * bins + 1
        flat = self.least.reshape(-1)
        # `least` at a bin: of all bins before it
        np.minimum.at(flat, place, pairs[:, 0])
        np.minimum.accumulate(self.least, axis=1, out=self.least)
        keep = np.flatnonzero(pairs[:, 0] < flat[place - 1])
        return keep, pairs[keep]


def _within(lengths: Numbers) -> Numbers:
    """0, 1, ... for each length."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def _counts_below(fronts: Fronts, entry: Numbers, most: Table) -> Numbers:
    """Of each of the entries, how many pairs score at most `most`."""
    every = np.sort(fronts.score)
    rank = np.searchsorted(every, fronts.score)
    wide = len(every) + 1
    keys = fronts.entry * wide + rank
    limits = entry * wide + np.searchsorted(every, most, side="right")
    return np.searchsorted(keys, limits) - fronts.start[entry]


def _undominated(entry: Numbers, pairs: Pairs, step: float) -> Numbers:
    """Numbers of the pairs of each entry of which no other is better in both.

    step: costs are rounded down to multiples of this
    """
    order = np.lexsort((pairs[:, 0], pairs[:, 1], entry))
    if not len(order):
        return order
    entry, cost = entry[order], pairs[order, 0]
    if step > 0:
        rank = np.floor((cost - cost.min()) / step).astype(np.int64)
        wide = int(rank.max()) + 1
    else:
        rank = np.unique(cost, return_inverse=True)[1].ravel()
        wide = len(rank) + 1
    falling = rank - entry * wide
    least = np.minimum.accumulate(falling)
    return order[np.concatenate(([True], falling[1:] < least[:-1]))]


def least_within(
    problem: Problem,
    state: Elimination,
    contexts: Contexts,
    price: float,
    best: float,
    work: int,
    loss: float = 0.0,
) -> Least:
    """The cheapest choice within the limit if it costs less than `best`, else None.

    It may cost so much as `loss` more than the cheapest, and be None if that costs no less than
    `best - loss`.

    state:    of the problem, complete, at that price of memory; contexts: its
    work:     pairs to look at, at most
    Raises TooMany.
    """
    ceiling = best + price * problem.memory_limit
    ceiling += ROUNDING * abs(ceiling)
    sums = _Sums(price, ceiling, work, loss)
    made: list[Fronts] = []  # by slot
    costs = [*problem.node_cost, *problem.edge_cost]
    memories = [*problem.node_memory, *problem.edge_memory]
    for slot, (cost, memory) in enumerate(zip(costs, memories, strict=True)):
        alive = np.flatnonzero(contexts.through(slot).ravel() <= ceiling)
        pairs = np.stack([cost.ravel()[alive], memory.ravel()[alive]], axis=1)
        made.append(Fronts.of(cost.size, alive, pairs, price))
    uses = _uses(state.order)
    for making in state.order.makings:
        sums.uses = uses[making.out]
        made.append(_made(making, state.tables, made, contexts, sums))
    return Least(_Walk(problem, state, made).choose(best), work - sums.left)


def _uses(order: Program) -> list[int]:
    """Of each slot's table, how many of its entries a choice uses."""
    uses = [0] * order.slots
    for root in order.roots:
        uses[root] += 1
    for making in reversed(order.makings):
        for arg in making.args:
            uses[arg] += uses[making.out]
    return uses


def _made(
    making: Making,
    tables: Sequence[Table],
    made: Sequence[Fronts],
    contexts: Contexts,
    sums: _Sums,
) -> Fronts:
    """The fronts of the table that is made. tables, made: by slot"""
    fronts, args = [made[slot] for slot in making.args], [tables[slot] for slot in making.args]
    shape = args[0].shape
    if making.kind == "transpose":
        (old,) = fronts
        row, column = np.divmod(old.entry, shape[1])
        size = shape[0] * shape[1]
        return Fronts.of(size, column * shape[0] + row, old.pairs, sums.price)
    context = contexts.of(making.out)
    if making.kind == "add":
        both = np.intersect1d(fronts[0].entry, fronts[1].entry)
        return sums.fronts(context, fronts[0], fronts[1], (both, both, both))
    if making.kind == "absorb":
        node, edge, _ = args
        inner = _alive(fronts[1], fronts[2], 1, edge.shape)
        rest = (context + node)[:, None] + np.zeros(edge.shape)
        onward = sums.fronts(rest, fronts[1], fronts[2], inner)
        entries = np.unique(onward.entry)
        row = entries // edge.shape[1]
        is_there = fronts[0].start[row + 1] > fronts[0].start[row]
        entries, row = entries[is_there], row[is_there]
        return sums.fronts(context, onward, fronts[0], (entries, row, row))
    _, node, right = args
    inner = _alive(fronts[2], fronts[1], 0, right.shape)
    rest = contexts.of(making.args[2]) - node[:, None]
    onward = sums.fronts(rest, fronts[2], fronts[1], inner)
    return sums.fronts(context, fronts[0], onward, _triples(args, context, fronts[0], onward, sums))


def _alive(
    edges: Fronts, nodes: Fronts, axis: int, shape: tuple[int, ...]
) -> tuple[Numbers, Numbers, Numbers]:
    """The entries of `edges` whose strategy on `axis` is alive in `nodes`, and that strategy."""
    entries = np.unique(edges.entry)
    strategy = np.divmod(entries, shape[1])[axis]
    is_there = nodes.start[strategy + 1] > nodes.start[strategy]
    entries, strategy = entries[is_there], strategy[is_there]
    return entries, strategy, entries


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
        fits = totals[totals[:, 1] <= self.problem.memory_limit * (1 - 1e-12)]
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
        _, picked = _decompose(target, [(0, [front.pairs for front in fronts])])
        for root, front, (number, pair) in zip(roots, fronts, picked, strict=True):
            choice[root.variable], nodes[root.variable] = front.entry[number], pair
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
    """The option, and the number and pair of each of its parts, whose sum is nearest to `whole`."""
    scale = np.abs(whole) + 1e-300
    best, found = np.inf, (-1, [])
    for name, parts in options:
        largest = max(range(len(parts)), key=lambda n: len(parts[n]))
        others = [part for n, part in enumerate(parts) if n != largest]
        rest = whole - _sums(*others)
        order = np.argsort(parts[largest][:, 0])
        near = np.searchsorted(parts[largest][order, 0], rest[:, 0])
        for shift in (-1, 0, 1):  # costs of a front differ, so its pair is the nearest in cost
            number = order[np.clip(near + shift, 0, len(order) - 1)]
            error = (np.abs(parts[largest][number] - rest) / scale).sum(axis=1)
            at = int(error.argmin())
            if error[at] < best:
                best = float(error[at])
                index = list(np.unravel_index(at, tuple(map(len, others))))
                index.insert(largest, number[at])
                picked = zip(parts, index, strict=True)
                found = name, [(int(i), part[i]) for part, i in picked]
    assert best < 1e-6, "the parts of a pair are among the fronts that it was made of"
    return found
