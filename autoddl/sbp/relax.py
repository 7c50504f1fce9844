"""Cheapest ways from many starts at once, by relaxing edges in rounds.

    length[v, start] = min over edges u -> v of length[u, start] + weight(u, v)

holds for all v exactly when the lengths are those of the cheapest ways. A round relaxes edges that
end at different nodes, for all starts in one array operation; rounds follow one another in the
order in which steps mostly do, so that few sweeps over all rounds reach the fixed point. After the
first sweep only edges are looked at whose source has changed since. For a few starts the rounds are
not worth their number, and each is searched on its own. Compiled loops (`compiled`) relax one edge
after the other in the same order: as rounding keeps the order of sums, the fixed point is the same.

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
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ..compiled import COMPILER
from .edges import KIND_INDEX, STAY, Bools, Floats, Ints, end_axes
from .states import StateGraph
from .steps import StepKind

_ORDER: tuple[StepKind, ...] = (
    "to_partial", "slice", "reduce_scatter", "all_to_all", "all_gather", "all_reduce",
)  # fmt: skip
PLACE = np.zeros(STAY + 1, dtype=np.int64)
for _place, _kind in enumerate(_ORDER):
    PLACE[KIND_INDEX[_kind]] = _place
_GROWS = np.isin(np.arange(STAY + 1), [KIND_INDEX["slice"], KIND_INDEX["reduce_scatter"]])
Reals = NDArray[np.floating[Any]]
Part = TypeVar("Part")
_FEW_STARTS = 40  # are searched one by one
_CHUNK = 320  # starts in one array at most
_WORTH_THREADS = 2_000_000  # edges times starts
_ARRAYS_S = 5e-9  # an edge and a start on arrays
_LANES = 128  # starts in one array of compiled loops


@dataclass(frozen=True)
class Rounds:
    """An order of edges: round r has the edges `order[bounds[r] : bounds[r + 1]]`."""

    order: Ints
    bounds: Ints

    @staticmethod
    def of(keys: Ints, ends: Ints) -> Rounds:
        """Edges by ascending keys; of each key the first edges to all ends, then the second, ..."""
        order = np.lexsort((ends, keys))
        new = np.ones(len(order), dtype=bool)
        new[1:] = (keys[order[1:]] != keys[order[:-1]]) | (ends[order[1:]] != ends[order[:-1]])
        place = np.arange(len(order))
        rank = place - np.maximum.accumulate(np.where(new, place, 0))
        again = np.lexsort((rank, keys[order]))
        order, rank = order[again], rank[again]
        starts = np.ones(len(order), dtype=bool)
        starts[1:] = (keys[order[1:]] != keys[order[:-1]]) | (rank[1:] != rank[:-1])
        return Rounds(order, np.append(np.flatnonzero(starts), len(order)))


@lru_cache(maxsize=32)
def rounds(graph: StateGraph, *, backwards: bool) -> tuple[Rounds]:
    """The edges as most paths have them, in one phase: tensors shrink, move and grow.

    Splits grow from the first axis on and shrink from the last.
    """
    if not len(graph.src):
        return (Rounds.of(graph.kind, graph.dst),)
    axes = graph.mesh.num_axes
    first, last = (ends[graph.mask] for ends in end_axes(axes))
    keys = PLACE[graph.kind] * axes + np.where(_GROWS[graph.kind], first, axes - 1 - last)
    return (Rounds.of(-keys, graph.src) if backwards else Rounds.of(keys, graph.dst),)


def lengths(
    graph: StateGraph, weights: Floats, starts: Ints, ends: Ints, *, backwards: bool = False
) -> Floats:
    """[starts, ends] lengths of the cheapest ways; edges of infinite weight are not there.

    backwards: ways from the ends to the starts
    """
    if len(starts) <= _FEW_STARTS and np.isfinite(weights).all():
        nodes = len(graph.codes)
        matrix = csr_matrix((weights, *graph.by_source), shape=(nodes, nodes))
        matrix = csr_matrix(matrix.T) if backwards else matrix
        return dijkstra(matrix, indices=starts)[:, ends]
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
    weights: Reals,
    order_of_edges: Callable[[], Sequence[Rounds]],
    starts: Ints,
    which: Ints,
) -> Reals:
    """[starts, nodes] lengths along edges from `src` to `dst`.

    weights: [edges, k], of which a start takes those of number `which`; lengths are as precise
    order_of_edges: by phases, of which some cheapest way has each before the next
    """
    if len(starts) <= _FEW_STARTS:
        return _one_by_one(num_nodes, src, dst, weights, starts, which)
    known = order_of_edges()
    loops = COMPILER.worth(relax, _ARRAYS_S * len(src) * len(starts))
    if loops is not None:
        order = [phase.order for phase in known]
        return _by_weights(loops, num_nodes, src, dst, weights, order, starts, which)
    return on_arrays(num_nodes, src, dst, weights, known, starts, which)


def on_arrays(
    num_nodes: int,
    src: Ints,
    dst: Ints,
    weights: Reals,
    phases: Sequence[Rounds],
    starts: Ints,
    which: Ints,
) -> Reals:
    """`follow` by rounds."""
    found = np.empty((len(starts), num_nodes), weights.dtype)
    is_there = np.isfinite(weights).any(axis=1)
    ways = [_Ways.of(src, dst, weights, phase, is_there) for phase in phases]

    threads = _threads(sum(len(phase.src) for phase in ways) * len(starts))
    turns = -(-len(starts) // (threads * _CHUNK))
    size = -(-len(starts) // (threads * turns))

    def fill(first: int) -> None:
        part = slice(first, first + size)
        own = starts[part]
        length = np.full((num_nodes, len(own)), np.inf, weights.dtype)
        length[own, np.arange(len(own))] = 0.0
        for phase in ways:
            phase.relax(length, which[part])
        found[part] = length.T

    _in_threads(fill, range(0, len(starts), size), threads)
    return found


def _by_weights(
    loops: Callable[[Ints, Ints, Reals, Reals], None],
    num_nodes: int,
    src: Ints,
    dst: Ints,
    weights: Reals,
    phases: Sequence[Ints],
    starts: Ints,
    which: Ints,
) -> Reals:
    """`follow` by compiled loops over starts of one number at a time."""
    found = np.empty((len(starts), num_nodes), weights.dtype)
    parts: list[tuple[list[tuple[Ints, Ints, Reals]], Ints]] = []
    for number in np.unique(which).tolist():
        there = [order[np.isfinite(weights[order, number])] for order in phases]
        edges = [(src[some], dst[some], weights[some, number]) for some in there]
        own = np.flatnonzero(which == number)
        parts += [(edges, own[low : low + _LANES]) for low in range(0, len(own), _LANES)]

    def fill(part: tuple[list[tuple[Ints, Ints, Reals]], Ints]) -> None:
        phases, own = part
        length = np.full((num_nodes, len(own)), np.inf, weights.dtype)
        length[starts[own], np.arange(len(own))] = 0.0
        for edges in phases:
            loops(*edges, length)
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


def relax(src: Ints, dst: Ints, weights: Reals, length: Reals) -> None:
    """Into `length` [nodes, starts], that of ways so far, what edges shorten; to be compiled."""
    nodes, lanes = length.shape
    changed = np.full(nodes, -2)  # sweep of a node's last change
    for node in range(nodes):
        for lane in range(lanes):
            if length[node, lane] < np.inf:
                changed[node] = 0
    sweep, last = 0, 0
    while last == sweep:
        sweep += 1
        for edge in range(len(src)):
            if changed[src[edge]] < sweep - 1:
                continue
            here, there, weight = length[src[edge]], length[dst[edge]], weights[edge]
            better = False
            for lane in range(lanes):
                reach = here[lane] + weight
                better |= reach < there[lane]
                there[lane] = min(reach, there[lane])
            if better:
                changed[dst[edge]] = last = sweep


def _one_by_one(
    num_nodes: int, src: Ints, dst: Ints, weights: Reals, starts: Ints, which: Ints
) -> Reals:
    found = np.empty((len(starts), num_nodes), weights.dtype)
    if (src[1:] < src[:-1]).any():
        order = np.argsort(src, kind="stable")
        src, dst, weights = src[order], dst[order], weights[order]
    nodes = np.arange(num_nodes + 1)
    for number in np.unique(which).tolist():
        there = np.isfinite(weights[:, number])
        begins = np.searchsorted(src[there], nodes)
        edges = weights[there, number], dst[there], begins  # explicit zeros are free steps
        own = which == number
        matrix = csr_matrix(edges, shape=(num_nodes, num_nodes))
        found[own] = dijkstra(matrix, indices=starts[own])
    return found


@dataclass(frozen=True)
class _Ways:
    """The edges of a phase, round after round."""

    src: Ints
    dst: Ints
    weights: Reals
    rounds: list[slice]

    @staticmethod
    def of(src: Ints, dst: Ints, weights: Reals, phase: Rounds, is_there: Bools) -> _Ways:
        """Without the edges that are not there."""
        there = is_there[phase.order]
        kept = np.concatenate([[0], np.cumsum(there)])[phase.bounds]
        order = phase.order[there]
        begin, end = kept[:-1].tolist(), kept[1:].tolist()
        slices = [slice(a, b) for a, b in zip(begin, end, strict=True) if a < b]
        return _Ways(src[order], dst[order], weights[order], slices)

    def relax(self, length: Reals, which: Ints) -> None:
        """Into `length` [nodes, starts], that of ways so far, what the edges shorten."""
        count = length.shape[1]
        first = np.flatnonzero(np.diff(which, prepend=-1))
        runs = [
            (slice(a, b), int(which[a])) for a, b in itertools.pairwise([*first.tolist(), count])
        ]
        most = max((edges.stop - edges.start for edges in self.rounds), default=0)
        reach_of, known_of = np.empty((2, most, count), self.weights.dtype)
        # time of a node's last change
        changed = (length.min(axis=1, initial=np.inf) < np.inf).astype(np.int64)
        looked = [0] * len(self.rounds)  # time at which a round was last relaxed
        now, last = 1, 1
        while True:
            for number, edges in enumerate(self.rounds):
                if last <= looked[number]:
                    continue
                src = self.src[edges]
                active = np.flatnonzero(changed.take(src) > looked[number])
                looked[number] = now
                if not len(active):
                    continue
                dst, weights = self.dst[edges], self.weights[edges]
                if len(active) < len(src):
                    src, dst = src.take(active), dst.take(active)
                    weights = weights.take(active, axis=0)
                reach, known = reach_of[: len(src)], known_of[: len(src)]
                length.take(src, axis=0, out=reach, mode="clip")  # "raise" would copy once more
                length.take(dst, axis=0, out=known, mode="clip")
                for own, number in runs:
                    reach[:, own] += weights[:, number, None]
                np.minimum(reach, known, out=reach)
                better = np.flatnonzero((reach != known).any(axis=1))
                if len(better):
                    now += 1
                    last = now
                    to = dst.take(better)
                    length[to] = reach.take(better, axis=0)
                    changed[to] = now
            if all(last <= look for look in looked):
                return
