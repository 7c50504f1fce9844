"""Lower bounds of path prices: states up to the order of the axes.

Axes of one extent and link class are interchangeable but for the order in which splits nest. Forget
the order, and a state is how often each label stands on each class of axes. A step then takes axes
of one label to another, at the price that depends on how many of each class they are, and any path
has such a path of the same price in its shadow: the cheapest of these is a lower bound. There are
far fewer of them: on six axes of extent 2 a matrix has 84 counted states for 4096.

The counted states are all of them if they are few, else those of the core (`states`) and of what is
asked for: every state that a real path can visit. Prices must depend on extents and links only.
Dims that divide alike may swap names (`symmetry`), so a search begins at one start of those that
then are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .counted_states import CLOSED_DIMS, CountedGraph, CountedStates, peeled_class
from .edges import KIND_INDEX, Bools, Codes, Floats, Ints
from .layout import TensorSpec
from .mesh import Mesh
from .needless import GROWS, SHRINKS, is_needless
from .redistribute import PriceFn
from .relax import follow
from .states import local_bytes
from .steps import FREE_KINDS, STEP_KINDS
from .symmetry import alike_dims, dual, names_by_rank

_TIE = 1e-12
_SINGLE = 2e-6  # relative error of a sum of single precision
_FREE = tuple(KIND_INDEX[kind] for kind in FREE_KINDS)


@dataclass(frozen=True)
class _Way:
    """What is asked of a search, by distinct counts.

    asked:  words of the starts, renamed; called: which of the renamings each has
    ends:   words of the ends under each renaming
    start_of, end_of: the number of each state that was asked for
    """

    asked: Ints
    called: Ints
    start_of: Ints
    ends: list[Ints]
    end_of: Ints


@dataclass(eq=False)
class _Found:
    """Seconds from some states to all of a graph, for one tensor; rows: by the state's word."""

    graph: CountedGraph
    rows: dict[int, int] = field(default_factory=dict)
    table: list[Floats] = field(default_factory=list)

    def add(self, words: Ints, seconds: Floats) -> None:
        self.rows.update(zip(words.tolist(), itertools.count(len(self.rows)), strict=False))
        self.table = [np.concatenate([*self.table, seconds])]

    def has(self, way: _Way) -> bool:
        known = all(word in self.rows for word in way.asked.tolist())
        return known and all(map(self.graph.has, way.ends))

    def pick(self, way: _Way) -> Floats:
        """[n, m]"""
        at = np.array([self.rows[word] for word in way.asked.tolist()], dtype=np.int64)
        found = np.empty((len(at), len(way.ends[0])))
        for called, ends in enumerate(way.ends):
            own = np.flatnonzero(way.called == called)
            found[own] = self.table[0][at[own, None], np.searchsorted(self.graph.words, ends)]
        return found[way.start_of[:, None], way.end_of]


@dataclass
class Counted:
    """Bounds on one mesh at one price."""

    mesh: Mesh
    price: PriceFn
    _asked: dict[int, dict[bytes, Ints]] = field(default_factory=dict, repr=False)
    _graphs: dict[int, CountedGraph] = field(default_factory=dict, repr=False)
    _open: dict[int, list[tuple[TensorSpec, Codes, Codes]]] = field(
        default_factory=dict, repr=False
    )
    _found: dict[TensorSpec, _Found] = field(default_factory=dict, repr=False)
    _known_ways: dict[Hashable, _Way] = field(default_factory=dict, repr=False)
    _words: dict[tuple[int, bytes], tuple[Ints, Ints]] = field(default_factory=dict, repr=False)

    @cached_property
    def _states(self) -> CountedStates:
        return CountedStates(self.mesh)

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The axes of each extent and link class."""
        return self._states.classes

    def fits(self, ndim: int) -> bool:
        """Whether the counted states of a tensor have words that are numbers of 63 bits."""
        return self._states.fits(ndim)

    @cached_property
    def _prices(self) -> Floats:
        """[kinds, k, 2] latency and seconds per byte."""
        prices = np.zeros((len(STEP_KINDS), len(self._states.numbers), 2))
        for row, many in enumerate(self._states.numbers):
            axes = sorted(
                axis
                for axes, number in zip(self.classes, many, strict=True)
                for axis in axes[:number]
            )
            for kind, name in enumerate(STEP_KINDS):
                if kind not in _FREE:
                    prices[kind, row] = self.price(name, tuple(axes))
        return prices

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None:
        """Announce that `seconds` will be called with these."""
        ndim = len(spec.shape)
        asked = self._asked.setdefault(ndim, {})
        for codes in (sources, targets):
            key = codes.tobytes()
            if key not in asked:
                asked[key] = np.unique(self._states.shadow(codes, ndim))
        self._open.setdefault(ndim, []).append((spec, sources, targets))

    def ask_rows(self, spec: TensorSpec, given: Codes, kept: Codes) -> None:
        """Announce that `row_seconds` will be called with these."""
        first, _ = _distinct(given, kept)
        self.ask(spec, given[first], kept[first])

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Floats:
        """[n, m] seconds that no path from a source to a target falls below."""
        ways = self._ways(spec, sources, targets)
        known = self._found.get(spec)
        if known is None or not any(map(known.has, ways)):
            self.ask(spec, sources, targets)
            self._answer(len(spec.shape))
            known = self._found[spec]
        number = next(n for n, way in enumerate(ways) if known.has(way))
        found = known.pick(ways[number])
        return found.T if number else found

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Floats:
        """[n] the same from each row of `given` to the same row of `kept`."""
        first, inverse = _distinct(given, kept)
        return np.diagonal(self.seconds(spec, given[first], kept[first]))[inverse]

    def _answer(self, ndim: int) -> None:
        """One search for all that was asked for tensors of as many dims, whatever their sizes."""
        graph = self._graph(ndim)
        new: dict[TensorSpec, dict[int, None]] = {}
        for spec, sources, targets in self._open.pop(ndim):
            known = self._found.get(spec)
            if known is None or known.graph is not graph:
                known = self._found[spec] = _Found(graph)
            also = new.setdefault(spec, {})
            ways = self._ways(spec, sources, targets)
            starts = [[w for w in way.asked.tolist() if w not in known.rows] for way in ways]
            least = min(starts, key=lambda words: len({*words} - also.keys()))
            also.update(dict.fromkeys(least))
        new = {spec: words for spec, words in new.items() if words}
        if new:
            asked = [np.array(list(words), dtype=np.int64) for words in new.values()]
            for spec, words, rows in zip(
                new, asked, self._search(graph, list(new), asked), strict=True
            ):
                self._found[spec].add(words, rows)

    def _ways(self, spec: TensorSpec, sources: Codes, targets: Codes) -> list[_Way]:
        """What may be searched for an answer: paths, or their duals."""
        ndim = len(spec.shape)
        alike = alike_dims(spec.shape, self.mesh) if ndim <= CLOSED_DIMS else ()
        ways = [self._way(ndim, alike, sources, targets)]
        if self._has_duals(spec):
            ways.append(self._way(ndim, alike, dual(targets), dual(sources)))
        return ways

    def _way(
        self, ndim: int, alike: tuple[tuple[int, ...], ...], starts: Codes, ends: Codes
    ) -> _Way:
        """The distinct counts of starts and ends; dims that divide alike swap names."""
        key = ndim, alike, starts.tobytes(), ends.tobytes()
        if key in self._known_ways:
            return self._known_ways[key]
        words, start_of = self._distinct(ndim, starts)
        last, end_of = self._distinct(ndim, ends)
        if not alike:
            nothing = np.zeros(len(words), dtype=np.int64)
            way = _Way(words, nothing, start_of, [last], end_of)
            return self._known_ways.setdefault(key, way)
        counts, counts_last = self._states.counts(words, ndim), self._states.counts(last, ndim)
        seldom = np.zeros((len(words), ndim), dtype=np.int64)
        for number, axes in enumerate(self.classes):
            seldom = seldom * (len(axes) + 1) - counts[:, number, 2:]
        every = names_by_rank(seldom, ndim, alike)
        numbers = every @ ndim ** np.arange(ndim)
        _, first, called = np.unique(numbers, return_index=True, return_inverse=True)
        names = every[first]
        powers = self._states.powers(ndim)
        asked, renamed = words.copy(), []
        for number, new in enumerate(names):
            swapped = powers[:, [0, 1, *(new + 2)]]
            own = called == number
            asked[own] = (counts[own] * swapped).sum(axis=(1, 2))
            renamed.append((counts_last * swapped).sum(axis=(1, 2)))
        way = _Way(asked, called, start_of, renamed, end_of)
        return self._known_ways.setdefault(key, way)

    def _distinct(self, ndim: int, codes: Codes) -> tuple[Ints, Ints]:
        """The distinct words of states, and which of these each has."""
        key = ndim, codes.tobytes()
        if key not in self._words:
            found = np.unique(self._states.words(codes, ndim), return_inverse=True)
            self._words[key] = found
        return self._words[key]

    def _has_duals(self, spec: TensorSpec) -> bool:
        """Whether a path read backwards costs the same (`symmetry`)."""
        return spec.is_float and self._is_dual

    @cached_property
    def _is_dual(self) -> bool:
        gather, scatter = (self._prices[KIND_INDEX[k]] for k in ("all_gather", "reduce_scatter"))
        return bool((gather == scatter).all())

    def _search(
        self, graph: CountedGraph, specs: Sequence[TensorSpec], starts: Sequence[Ints]
    ) -> list[Floats]:
        """For each tensor [starts, states]; all by one search."""
        prices = self._prices[graph.kind, graph.many]
        parts, sums = self._divisible
        sums = (graph.kind == KIND_INDEX["all_reduce"]) & sums[graph.many]
        parts, to_partial = parts[graph.kind, graph.many], graph.kind == KIND_INDEX["to_partial"]
        weights = np.empty((len(graph.src), len(specs)), dtype=np.float32)  # half the time
        evens, needless = [], {}
        for number, spec in enumerate(specs):
            bytes_, even = local_bytes(spec, graph.parts)
            evens.append(even)
            own = prices[:, 0] + prices[:, 1] * np.maximum(bytes_[graph.src], bytes_[graph.dst])
            if not spec.is_float:
                own[to_partial] = np.inf
            key = even.tobytes()
            if key not in needless:
                needless[key] = is_needless(graph.halfway, parts, sums, even)
                needless[key] |= ~(even[graph.src] & even[graph.dst])
            own[needless[key]] = np.inf
            weights[:, number] = own
        rows = [np.searchsorted(graph.words, words) for words in starts]
        which = np.repeat(np.arange(len(specs)), [len(own) for own in rows])
        edges = graph.src, graph.dst, weights
        lengths = follow(
            len(graph.words), *edges, lambda: graph.rounds, np.concatenate(rows), which
        )
        found = []
        for number, (own, even) in enumerate(zip(rows, evens, strict=True)):
            # what was rounded up is taken off again
            seconds = lengths[which == number].astype(np.float64) * (1 - _SINGLE)
            seconds[~even[own]] = np.inf
            seconds[:, ~even] = np.inf
            found.append(seconds)
        return found

    @cached_property
    def _divisible(self) -> tuple[Bools, Bools]:
        """[kinds, k] what a step along one axis and one along the rest replace; [k] all-reduces."""
        row_of = {tuple(many): row for row, many in enumerate(self._states.numbers.tolist())}
        extents = np.array([self.mesh.extents[axes[0]] for axes in self.classes], dtype=float)
        parts = np.zeros((len(STEP_KINDS), len(self._states.numbers)), dtype=bool)
        for row, many in enumerate(self._states.numbers):
            if many.sum() < 2:
                continue
            for kind in (*GROWS, *SHRINKS):
                one = np.zeros_like(many)
                one[peeled_class(many, kind)] = 1
                rest = many - one
                if kind in _FREE:
                    parts[kind, row] = True
                    continue
                first = self._prices[kind, row_of[tuple(one)]].copy()
                other = self._prices[kind, row_of[tuple(rest)]].copy()
                if kind in GROWS:  # a scatter leaves less for the second step
                    other[1] /= (extents**one).prod()
                else:
                    first[1] /= (extents**rest).prod()
                whole = self._prices[kind, row] * (1 + _TIE)
                parts[kind, row] = (first + other <= whole).all()
        scatter, gather, both = (
            self._prices[KIND_INDEX[k]] for k in ("reduce_scatter", "all_gather", "all_reduce")
        )
        return parts, (scatter + gather <= both * (1 + _TIE)).all(axis=1)

    def _graph(self, ndim: int) -> CountedGraph:
        """The graph with all that was asked for so far."""
        known = self._graphs.get(ndim)
        if known is not None and all(map(known.has, self._asked[ndim].values())):
            return known
        self._graphs[ndim] = self._states.graph(ndim, self._asked[ndim].values())
        return self._graphs[ndim]


def _distinct(given: Codes, kept: Codes) -> tuple[Ints, Ints]:
    """The first of each distinct pair of rows, and which of these each pair is."""
    both = np.hstack([given, kept])
    _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return first, inverse.ravel()
