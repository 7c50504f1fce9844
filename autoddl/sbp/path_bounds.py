"""Lower bounds of path prices: shortest paths between states up to the order of the axes.

Axes of one extent and link class are interchangeable but for the order in which splits nest. Forget
the order, and a state is how often each label stands on each class of axes: the states fall into
the classes of a quotient graph. A step takes axes of one label to another, at a price
that depends on how many of each class they are, so every path has a path of the same price in the
quotient, and the cheapest of these is a lower bound. The quotient is far smaller: on six axes of
extent 2 a matrix has 84 states up to the order, and 4096 in all. A state is a number there, its
*word*, with a digit for each class and label but the last.

Sizes are forgotten as well, but for the bytes of the whole tensor: any dim may be split any number
of times. Then a step may leave the dims alone that neither the sources nor the targets split: what
it splits along one of these can be split along another instead. So tensors are alike that have as
many dims which are split, and as many bytes.

The quotient has all states if they are few, else those of the core (`states`) and of what is asked
for: every state that a real path can visit. Prices must depend on extents and links only.
`tests/sbp/test_path_bounds.py` compares the bounds with true shortest paths on all meshes of at
most four axes, for every entry of the table of collectives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .collectives import COLLECTIVES, Collectives
from .edges import distinct_pairs, find
from .layout import Codes, Floats, Ints, TensorSpec, repeated_parts
from .mesh import Mesh
from .placement import Placement
from .redistribute import PriceFn, without_latency
from .states import core_codes, lengths, without_a_label

# Up to so many states the quotient graph is complete. With 1,000 or 4,000 the plans of gpt_0_35b on
# 2x16 and of dlrm on 2x8 are the same, in the same CPU time within noise.
_FEW_STATES = 2000
_ROUNDING = 1e-12  # relative: sums of the same costs in another order differ by so much at most


@dataclass(frozen=True, eq=False)
class QuotientGraph:
    """States as ascending words, and the steps between them, by ascending sources.

    kind:   per edge, the collective's place in the table
    many:   per edge, the row of `Quotient.numbers`
    shards: per edge, the fewer of both ends' shards of the tensor
    order:  of the states, those of fewer shards first
    """

    words: Ints
    src: Ints
    dst: Ints
    kind: Ints
    many: Ints
    shards: Floats
    order: Ints

    @cached_property
    def begins(self) -> Ints:
        """[states + 1]: where the steps from each state begin."""
        return np.searchsorted(self.src, np.arange(len(self.words) + 1))

    def has(self, words: Ints) -> bool:
        return bool((find(words, self.words) >= 0).all())


@dataclass(frozen=True)
class Quotient:
    """The states on one mesh up to the order of axes, and the steps between them."""

    mesh: Mesh
    collectives: Collectives = COLLECTIVES

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The axes of each extent and link class; an uneven one is alone."""
        found: dict[object, list[int]] = {}
        for number, axis in enumerate(self.mesh.axes):
            found.setdefault(axis, []).append(number)
        return tuple(map(tuple, found.values()))

    @cached_property
    def numbers(self) -> Ints:
        """[k, classes]: how many axes of each class a step may be along."""
        ranges = [range(len(axes) + 1) for axes in self.classes]
        return np.array(list(itertools.product(*ranges)), dtype=np.int64)[1:]

    def fits(self, ndim: int) -> bool:
        """Whether the words of a tensor's states are numbers of 63 bits."""
        return math.prod(len(axes) + 1 for axes in self.classes) ** (ndim + 1) < 2**62

    def words(self, codes: Codes, ndim: int) -> Ints:
        """The counts of each row of codes [n, axes] as one number."""
        found = np.zeros(len(codes), dtype=np.int64)
        for axes, powers in zip(self.classes, self.powers(ndim), strict=True):
            for axis in axes:
                found += powers.take(codes[:, axis] + np.int8(2))
        return found

    def powers(self, ndim: int) -> Ints:
        """[classes, labels]: what an axis adds to a word; the last label's number is implied."""
        powers = np.zeros((len(self.classes), ndim + 2), dtype=np.int64)
        power = 1
        for row, axes in zip(powers, self.classes, strict=True):
            for label in range(ndim + 1):
                row[label] = power
                power *= len(axes) + 1
        return powers

    def shadow(self, codes: Codes, ndim: int) -> Ints:
        """Words of the states and of those on their way to Broadcast (`StateGraph.joined`)."""
        found = [codes]
        while (codes != -1).any():
            codes = without_a_label(codes[(codes != -1).any(axis=1)])
            found.append(codes)
        return np.unique(self.words(np.concatenate(found), ndim))

    def graph(self, ndim: int, asked: Iterable[Ints]) -> QuotientGraph:
        """Of all states if they are few, else of those of the core and of the words `asked`."""
        labels = ndim + 2
        sizes = [len(axes) for axes in self.classes]
        if math.prod(math.comb(size + labels - 1, labels - 1) for size in sizes) > _FEW_STATES:
            core = self.words(core_codes(self.mesh, ndim), ndim)
            return self._build(ndim, np.unique(np.concatenate([core, *asked])))
        words = np.zeros(1, dtype=np.int64)
        for size, powers in zip(sizes, self.powers(ndim), strict=True):
            chosen = itertools.combinations_with_replacement(range(labels), size)
            more = np.array([powers[list(held)].sum() for held in chosen])
            words = (words[:, None] + more).ravel()
        return self._build(ndim, np.sort(words))

    def counts(self, words: Ints, ndim: int) -> Ints:
        """[n, classes, labels]: the inverse of `words`."""
        counts = np.zeros((len(words), len(self.classes), ndim + 2), dtype=np.int64)
        left = words
        for number, axes in enumerate(self.classes):
            for label in range(ndim + 1):
                left, counts[:, number, label] = np.divmod(left, len(axes) + 1)
            counts[:, number, -1] = len(axes) - counts[:, number, :-1].sum(axis=1)
        return counts

    def _build(self, ndim: int, words: Ints) -> QuotientGraph:
        powers, labels = self.powers(ndim), ndim + 2
        counts = self.counts(words, ndim)
        parts = [self.mesh.parts[axes[0]] for axes in self.classes]
        shards = repeated_parts(parts, counts[:, :, 2:].sum(axis=2))
        edges = []
        for source in range(labels):
            enough = (counts[:, None, :, source] >= self.numbers).all(axis=2)
            held, numbers = np.nonzero(enough)
            for target in range(labels):
                if target == source:
                    continue
                change = self.numbers @ (powers[:, target] - powers[:, source])
                ends = find(words[held] + change[numbers], words)
                there = np.flatnonzero(ends >= 0)
                src, many, dst = held[there], numbers[there], ends[there]
                for kind in self.collectives.of_change(
                    Placement(source - 2), Placement(target - 2)
                ):
                    edges.append(np.stack([src, dst, np.full(len(src), kind), many]))
        every = np.concatenate(edges, axis=1)
        src, dst, kind, many = every[:, np.argsort(every[0], kind="stable")]
        fewer = np.minimum(shards[src], shards[dst])
        order = np.argsort(shards, kind="stable")
        return QuotientGraph(words, src, dst, kind, many, fewer, order)


@dataclass(frozen=True)
class _Sort:
    """What bounds know of a tensor: how many of its dims are split, and its bytes."""

    dims: int
    bytes: int


@dataclass(eq=False)
class _Found:
    """Seconds from some states to all of a graph, for one sort; rows: by the state's word."""

    graph: QuotientGraph
    rows: dict[int, int] = field(default_factory=dict)
    table: Floats = field(default_factory=lambda: np.empty(0))

    def add(self, words: Ints, seconds: Floats) -> None:
        self.table = np.concatenate([self.table, seconds]) if self.rows else seconds
        self.rows |= {word: len(self.rows) + n for n, word in enumerate(words.tolist())}

    def has(self, starts: Ints, ends: Ints) -> bool:
        return self.rows.keys() >= set(starts.tolist()) and self.graph.has(ends)

    def between(self, starts: Ints, ends: Ints) -> Floats:
        """[starts, ends]"""
        rows = np.array([self.rows[word] for word in starts.tolist()], dtype=np.int64)
        return self.table[rows[:, None], np.searchsorted(self.graph.words, ends)]


@dataclass
class PathBounds:
    """Bounds on one mesh at one price."""

    mesh: Mesh
    price: PriceFn
    collectives: Collectives = COLLECTIVES
    _asked: dict[int, dict[bytes, Ints]] = field(default_factory=dict, repr=False)
    _graphs: dict[int, QuotientGraph] = field(default_factory=dict, repr=False)
    _open: dict[int, list[tuple[_Sort, Codes]]] = field(default_factory=dict, repr=False)
    _found: dict[_Sort, _Found] = field(default_factory=dict, repr=False)
    _words: dict[tuple[int, bytes], tuple[Ints, Ints]] = field(default_factory=dict, repr=False)

    def by_bytes(self, spec: TensorSpec) -> PathBounds:
        """At the same seconds per byte, and no latencies, of whatever tensor."""
        return self._by_bytes

    @cached_property
    def _by_bytes(self) -> PathBounds:
        return PathBounds(self.mesh, without_latency(self.price), self.collectives)

    @cached_property
    def _states(self) -> Quotient:
        return Quotient(self.mesh, self.collectives)

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The axes of each extent and link class."""
        return self._states.classes

    def fits(self, ndim: int) -> bool:
        """Whether the words of a tensor's states are numbers of 63 bits."""
        return self._states.fits(ndim)

    @cached_property
    def _prices(self) -> Floats:
        """[kinds, k, 2] latency and seconds per byte."""
        entries = self.collectives.entries
        prices = np.zeros((len(entries), len(self._states.numbers), 2))
        for row, many in enumerate(self._states.numbers):
            axes = sorted(
                axis
                for axes, number in zip(self.classes, many, strict=True)
                for axis in axes[:number]
            )
            for kind, entry in enumerate(entries):
                if not entry.is_local:
                    prices[kind, row] = self.price(entry.way, tuple(axes))
        return prices

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None:
        """Announce that `seconds` will be called with these."""
        self._ask(*_sorted(spec, sources, targets))

    def ask_rows(self, spec: TensorSpec, given: Codes, kept: Codes) -> None:
        """Announce that `row_seconds` will be called with these."""
        first, _ = distinct_pairs(given, kept)
        self.ask(spec, given[first], kept[first])

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Floats:
        """[n, m] seconds that no path from a source to a target falls below."""
        seconds, start_of, end_of = self._answer(*_sorted(spec, sources, targets))
        return seconds.take(start_of, axis=0).take(end_of, axis=1)

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Floats:
        """[n] the same from each row of `given` to the same row of `kept`."""
        first, inverse = distinct_pairs(given, kept)
        seconds, start_of, end_of = self._answer(*_sorted(spec, given[first], kept[first]))
        return seconds[start_of, end_of][inverse]

    def _ask(self, sort: _Sort, sources: Codes, targets: Codes) -> None:
        asked = self._asked.setdefault(sort.dims, {})
        for codes in (sources, targets):
            key = codes.tobytes()
            if key not in asked:
                asked[key] = self._states.shadow(codes, sort.dims)
        self._open.setdefault(sort.dims, []).append((sort, sources))

    def _answer(self, sort: _Sort, sources: Codes, targets: Codes) -> tuple[Floats, Ints, Ints]:
        """Seconds between distinct words, and the number of each source's and target's word."""
        starts, start_of = self._distinct(sort.dims, sources)
        ends, end_of = self._distinct(sort.dims, targets)
        found = self._found.get(sort)
        if found is None or not found.has(starts, ends):
            self._ask(sort, sources, targets)
            self._search_all(sort.dims)
            found = self._found[sort]
        return found.between(starts, ends), start_of, end_of

    def _search_all(self, dims: int) -> None:
        """Search for all that was asked for of as many dims, whatever the bytes."""
        graph = self._graph(dims)
        new: dict[_Sort, dict[int, None]] = {}
        for sort, sources in self._open.pop(dims):
            known = self._found.get(sort)
            if known is None or known.graph is not graph:
                known = self._found[sort] = _Found(graph)
            words = self._distinct(dims, sources)[0].tolist()
            missing = (word for word in words if word not in known.rows)
            new.setdefault(sort, {}).update(dict.fromkeys(missing))
        for sort, words in new.items():
            if words:
                starts = np.array(list(words), dtype=np.int64)
                self._found[sort].add(starts, self._search(graph, sort.bytes, starts))

    def _distinct(self, ndim: int, codes: Codes) -> tuple[Ints, Ints]:
        """The distinct words of states, and which of these each has."""
        key = ndim, codes.tobytes()
        if key not in self._words:
            words = self._states.words(codes, ndim)
            self._words[key] = np.unique(words, return_inverse=True)
        return self._words[key]

    def _search(self, graph: QuotientGraph, size: int, words: Ints) -> Floats:
        """[words, states] for tensors of so many bytes."""
        alpha_s, s_per_byte = self._prices[graph.kind, graph.many].T
        weights = alpha_s + s_per_byte / graph.shards * size
        starts = np.searchsorted(graph.words, words)
        seconds = lengths(graph.begins, graph.dst, weights, graph.order, starts)
        return seconds * (1 - _ROUNDING)

    def _graph(self, dims: int) -> QuotientGraph:
        """The graph with all that was asked for so far."""
        known, asked = self._graphs.get(dims), self._asked[dims].values()
        if known is None or not all(map(known.has, asked)):
            self._graphs[dims] = self._states.graph(dims, asked)
        return self._graphs[dims]


def _sorted(spec: TensorSpec, sources: Codes, targets: Codes) -> tuple[_Sort, Codes, Codes]:
    """Without the dims that no state splits; one stays, along which sums may be scattered."""
    ndim = len(spec.shape)
    split = np.zeros(ndim + 2, dtype=bool)
    for codes in (sources, targets):
        split[codes + np.int8(2)] = True
    split[2:3] |= not split[2:].any()
    names = np.cumsum(split[2:], dtype=np.int8) - np.int8(1)
    labels = np.concatenate([np.array([-2, -1], dtype=np.int8), names])
    dims = int(split[2:].sum())
    if dims < ndim:
        sources, targets = (labels[codes + np.int8(2)] for codes in (sources, targets))
    return _Sort(dims, spec.bytes), sources, targets
