"""Cheapest ways from many starts at once, by relaxing edges in rounds.

    length[v, start] = min over edges u -> v of length[u, start] + weight(u, v)

holds for all v exactly when the lengths are those of the cheapest ways. A round relaxes edges that
end at different nodes, for all starts in one array operation; the rounds of a turn take the least
for its ends together. Turns follow one another in the order in which steps mostly do, so that few
sweeps over all of them reach the fixed point. After the first sweep only edges are looked at whose
source has changed since, and maybe others of their turn. For a few starts the rounds are not worth
their number, and each is searched on its own. Compiled loops (`_native`) relax one edge after the
other in the same order: as rounding keeps the order of sums, the fixed point is the same.

Where it is known that some cheapest way has all its edges of one sort before those of the next, the
edges of each sort are a phase of their own: no phase is gone back to (`follow`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._native import Loops, loops
from .collectives import Collectives
from .edges import STAY, end_axes, shortest
from .layout import Bools, Floats, Ints
from .states import BySource, StateGraph

Reals = NDArray[np.floating[Any]]
Part = TypeVar("Part")
# The following numbers choose between ways to compute the same lengths. Half and twice each of them
# leaves the plans of gpt_0_35b on 2x16 and dlrm on 2x8 as they are, and the CPU time of planning
# within noise (15 % in most runs): only their orders of magnitude matter.
FEW_STARTS = 40  # are searched one by one
_CHUNK = 320  # starts in one array at most
_WORTH_THREADS = 2_000_000  # edges times starts
_LANES = 128  # starts in one array of the loops
_MOST = 0.5  # of the edges of a turn: if more are active, all are as well relaxed
_FEW_ROWS = 4  # edges for each row of prices: then it pays to have these for each start


@dataclass(frozen=True)
class Rounds:
    """An order of edges: round r has the edges `order[bounds[r] : bounds[r + 1]]`.

    turns: the first round of each key. Of the ends of that round, the later ones of the key have
           the first few, in the same order.
    """

    order: Ints
    bounds: Ints
    turns: Ints

    @staticmethod
    def of(keys: Ints, ends: Ints) -> Rounds:
        """Edges by ascending keys; of each key the first edges to all ends, then the second, ..."""
        key, end = shortest(keys), shortest(ends)
        order = np.lexsort((end, key))
        new = np.ones(len(order), dtype=bool)
        new[1:] = (key[order[1:]] != key[order[:-1]]) | (end[order[1:]] != end[order[:-1]])
        firsts = np.flatnonzero(new)
        number = np.diff(firsts, append=len(order))  # of edges to one end
        rank = shortest(np.arange(len(order)) - np.repeat(firsts, number))
        fewest = shortest(np.repeat(-number, number))
        again = np.lexsort((fewest, rank, key[order]))
        order, rank = order[again], rank[again]
        turns = np.ones(len(order), dtype=bool)
        turns[1:] = key[order[1:]] != key[order[:-1]]
        starts = turns.copy()
        starts[1:] |= rank[1:] != rank[:-1]
        bounds = np.append(np.flatnonzero(starts), len(order))
        return Rounds(order, bounds, np.flatnonzero(turns[bounds[:-1]]))


@lru_cache(maxsize=8)
def turns(collectives: Collectives) -> Ints:
    """The turn of each kind of edge, of those that stay as well."""
    return np.array([*collectives.turns, *[0] * (STAY + 1 - len(collectives.turns))])


@lru_cache(maxsize=32)
def rounds(graph: StateGraph, *, backwards: bool) -> tuple[Rounds]:
    """The edges as most paths have them, in one phase: tensors shrink, move and grow.

    Splits grow from the first axis on and shrink from the last.
    """
    if not len(graph.src):
        return (Rounds.of(graph.kind, graph.dst),)
    axes = graph.mesh.num_axes
    first, last = (ends[graph.mask] for ends in end_axes(axes))
    grows = np.isin(graph.kind, graph.collectives.where(lambda entry: entry.divides))
    keys = turns(graph.collectives)[graph.kind] * axes + np.where(grows, first, axes - 1 - last)
    return (Rounds.of(-keys, graph.src) if backwards else Rounds.of(keys, graph.dst),)


def lengths_one_by_one(
    by_source: BySource, weights: Floats, starts: Ints, *, backwards: bool = False
) -> Floats:
    """[starts, nodes] lengths by Dijkstra's algorithm from one start after the other.

    By compiled loops, or by SciPy where there are none: the least sums are the same. Edges of
    infinite weight are not there.
    backwards: of ways from the nodes to the starts
    """
    targets, begins = by_source
    compiled = loops()
    if compiled is not None:
        return compiled.shortest(begins, targets, weights, starts, backwards=backwards)
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    there = np.isfinite(weights)
    if not there.all():
        begins = np.append(0, np.cumsum(there))[begins]
        weights, targets = weights[there], targets[there]
    nodes = len(begins) - 1
    matrix = csr_matrix((weights, targets, begins), shape=(nodes, nodes))
    return dijkstra(csr_matrix(matrix.T) if backwards else matrix, indices=starts)


def lengths(
    graph: StateGraph, weights: Floats, starts: Ints, ends: Ints, *, backwards: bool = False
) -> Floats:
    """[starts, ends] lengths of the cheapest ways; edges of infinite weight are not there.

    backwards: ways from the ends to the starts
    """
    if len(starts) <= FEW_STARTS:
        return lengths_one_by_one(graph.by_source, weights, starts, backwards=backwards)[:, ends]
    src, dst = (graph.dst, graph.src) if backwards else (graph.src, graph.dst)
    edges = src, dst, weights[:, None]
    known = partial(rounds, graph, backwards=backwards)
    found = follow(len(graph.codes), *edges, known, starts, np.zeros_like(starts))
    return found[:, ends].astype(np.float64, copy=False)


def lengths_of(graph: StateGraph, weights: Floats, starts: Ints, which: Ints) -> Floats:
    """[starts, states]: `lengths` at several weights [edges, k], `which` of them for each start."""
    known = partial(rounds, graph, backwards=False)
    return follow(len(graph.codes), graph.src, graph.dst, weights, known, starts, which)


def follow(
    num_nodes: int,
    src: Ints,
    dst: Ints,
    prices: Reals,
    order_of_edges: Callable[[], Sequence[Rounds]],
    starts: Ints,
    which: Ints,
    priced: Ints | None = None,
) -> Reals:
    """[starts, nodes] lengths along edges from `src` to `dst`.

    prices: [rows, k], of which a start takes those of number `which`; lengths are as precise
    order_of_edges: by phases, of which some cheapest way has each before the next
    priced: the row of each edge; without it there is one for each edge
    """
    if priced is None:
        priced = np.arange(len(src))
    edges = src, dst, prices, priced
    if len(starts) <= FEW_STARTS:
        return _one_by_one(num_nodes, *edges, starts, which)
    known = order_of_edges()
    compiled = loops()
    if compiled is not None:
        order = [phase.order for phase in known]
        return _by_weights(compiled, num_nodes, *edges, order, starts, which)
    return on_arrays(num_nodes, *edges, known, starts, which)


def on_arrays(
    num_nodes: int,
    src: Ints,
    dst: Ints,
    prices: Reals,
    priced: Ints,
    phases: Sequence[Rounds],
    starts: Ints,
    which: Ints,
) -> Reals:
    """`follow` by rounds."""
    found = np.empty((len(starts), num_nodes), prices.dtype)
    ways = [_Ways.of(src, dst, prices, priced, phase) for phase in phases]

    threads = _threads(len(src) * len(starts))
    turns = -(-len(starts) // (threads * _CHUNK))
    size = -(-len(starts) // (threads * turns))

    def fill(first: int) -> None:
        part = slice(first, first + size)
        own = starts[part]
        length = np.full((num_nodes, len(own)), np.inf, prices.dtype)
        length[own, np.arange(len(own))] = 0.0
        for phase in ways:
            phase.relax(length, which[part])
        found[part] = length.T

    _in_threads(fill, range(0, len(starts), size), threads)
    return found


def _by_weights(
    compiled: Loops,
    num_nodes: int,
    src: Ints,
    dst: Ints,
    prices: Reals,
    priced: Ints,
    phases: Sequence[Ints],
    starts: Ints,
    which: Ints,
) -> Reals:
    """`follow` by compiled loops over starts of one number at a time."""
    found = np.empty((len(starts), num_nodes), prices.dtype)
    parts: list[tuple[list[tuple[Ints, Ints, Reals]], Ints]] = []
    for number in np.unique(which).tolist():
        weights = prices[:, number].take(priced)
        there = [order[np.isfinite(weights[order])] for order in phases]
        edges = [(src[some], dst[some], weights[some]) for some in there]
        own = np.flatnonzero(which == number)
        parts += [(edges, own[low : low + _LANES]) for low in range(0, len(own), _LANES)]

    def fill(part: tuple[list[tuple[Ints, Ints, Reals]], Ints]) -> None:
        phases, own = part
        length = np.full((num_nodes, len(own)), np.inf, prices.dtype)
        length[starts[own], np.arange(len(own))] = 0.0
        for edges in phases:
            compiled.relax(*edges, length)
        found[own] = length.T

    _in_threads(fill, parts, _threads(len(src) * len(starts)))
    return found


def _threads(work: int) -> int:
    """How many threads are worth it. work: edges times starts"""
    return (os.cpu_count() or 1) if work >= _WORTH_THREADS else 1


def _in_threads(fill: Callable[[Part], None], parts: Iterable[Part], threads: int) -> None:
    """Call `fill` with each part, which does so without the interpreter's lock."""
    if threads == 1:
        for part in parts:
            fill(part)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, parts))


def _one_by_one(
    num_nodes: int,
    src: Ints,
    dst: Ints,
    prices: Reals,
    priced: Ints,
    starts: Ints,
    which: Ints,
) -> Reals:
    found = np.empty((len(starts), num_nodes), prices.dtype)
    if (src[1:] < src[:-1]).any():
        order = np.argsort(src, kind="stable")
        src, dst, priced = src[order], dst[order], priced[order]
    begins = np.searchsorted(src, np.arange(num_nodes + 1)).astype(np.int32)
    by_source = dst.astype(np.int32), begins
    for number in np.unique(which).tolist():
        own = which == number
        found[own] = lengths_one_by_one(by_source, prices[:, number].take(priced), starts[own])
    return found


@dataclass(frozen=True)
class _Turn:
    """Edges of one key, round after round.

    ends:   all their ends; slots: of each edge, the place of its end there
    priced: of each edge, the row of its prices
    """

    src: Ints
    priced: Ints
    ends: Ints
    slots: Ints
    rounds: list[slice]
    is_free: bool


@dataclass(frozen=True)
class _Ways:
    """The edges of a phase, turn after turn."""

    turns: list[_Turn]
    prices: Reals

    @staticmethod
    def of(src: Ints, dst: Ints, prices: Reals, priced: Ints, phase: Rounds) -> _Ways:
        """Without the edges that are not there."""
        is_there, is_free = np.isfinite(prices).any(axis=1), (prices == 0).all(axis=1)
        bounds = phase.bounds.tolist()
        turns = []
        for first, last in itertools.pairwise([*phase.turns.tolist(), len(bounds) - 1]):
            edges = phase.order[bounds[first] : bounds[last]]
            ends = dst[phase.order[bounds[first] : bounds[first + 1]]]
            cuts = np.array(bounds[first : last + 1]) - bounds[first]
            there = is_there[priced[edges]]
            if not there.all():
                cuts = np.concatenate([[0], np.cumsum(there)])[cuts]
                edges = edges[there]
            place = np.empty(int(ends.max()) + 1, dtype=np.int64)
            place[ends] = np.arange(len(ends))
            rounds = [slice(a, b) for a, b in itertools.pairwise(cuts.tolist()) if a < b]
            free = bool(is_free[priced[edges]].all())
            turns.append(_Turn(src[edges], priced[edges], ends, place[dst[edges]], rounds, free))
        return _Ways(turns, prices)

    def relax(self, length: Reals, which: Ints) -> None:
        """Into `length` [nodes, starts], that of ways so far, what the edges shorten."""
        added = _Added.of(self.prices, which, self.turns)
        # time of a node's last change
        changed = (length.min(axis=1, initial=np.inf) < np.inf).astype(np.int64)
        looked = [0] * len(self.turns)  # time at which a turn was last relaxed
        now, last = 1, 1
        while True:
            for number, turn in enumerate(self.turns):
                if last <= looked[number]:
                    continue
                active = changed.take(turn.src) > looked[number]
                looked[number] = now
                if not active.any():
                    continue
                before = length.take(turn.ends, axis=0)
                after = added.least(turn, active, length, before)
                better = np.flatnonzero((after != before).any(axis=1))
                if len(better):
                    now += 1
                    last = now
                    to = turn.ends.take(better)
                    length[to] = after.take(better, axis=0)
                    changed[to] = now
            if all(last <= look for look in looked):
                return


@dataclass(frozen=True)
class _Added:
    """What edges add, for starts that take prices of some numbers.

    every: [rows, starts] if the rows of prices are few
    runs:  starts of one number
    """

    prices: Reals
    every: Reals | None
    runs: list[tuple[slice, int]]
    space: Reals

    @staticmethod
    def of(prices: Reals, which: Ints, turns: Sequence[_Turn]) -> _Added:
        first = np.flatnonzero(np.diff(which, prepend=-1))
        runs = [
            (slice(a, b), int(which[a]))
            for a, b in itertools.pairwise([*first.tolist(), len(which)])
        ]
        rounds = [edges.stop - edges.start for turn in turns for edges in turn.rounds]
        few = len(prices) * _FEW_ROWS <= sum(len(turn.src) for turn in turns)
        every = prices.take(which, axis=1) if few else None
        space = np.empty((2, max(rounds, default=0), len(which)), prices.dtype)
        return _Added(prices, every, runs, space)

    def least(self, turn: _Turn, active: Bools, length: Reals, before: Reals) -> Reals:
        """Of ways to the ends, the least of `before` and of those along active edges at least."""
        after = before.copy()
        whole = np.count_nonzero(active) > _MOST * len(active)
        for edges in turn.rounds:
            src, priced, slots = turn.src[edges], turn.priced[edges], turn.slots[edges]
            if not whole:
                own = np.flatnonzero(active[edges])
                if not len(own):
                    continue
                if len(own) < len(src):
                    src, priced, slots = src.take(own), priced.take(own), slots.take(own)
            reach, more = self.space[:, : len(src)]
            length.take(src, axis=0, out=reach, mode="clip")  # "raise" would copy once more
            if not turn.is_free:
                self._add(priced, reach, more)
            if slots[-1] == len(slots) - 1:
                best = after[: len(slots)]
                np.minimum(best, reach, out=best)
            else:
                after.take(slots, axis=0, out=more, mode="clip")
                after[slots] = np.minimum(reach, more, out=reach)
        return after

    def _add(self, priced: Ints, reach: Reals, space: Reals) -> None:
        if self.every is not None:
            reach += self.every.take(priced, axis=0, out=space, mode="clip")
            return
        prices = self.prices[priced]
        for own, number in self.runs:
            reach[:, own] += prices[:, number, None]
