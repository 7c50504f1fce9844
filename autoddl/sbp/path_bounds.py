"""Lower bounds of path prices: shortest paths between states up to the order of the axes.

Axes of one extent and link class are interchangeable but for the order in which splits nest. Forget
the order, and a state is how often each label stands on each class of axes: the states fall into
the classes of a quotient graph (`quotient`). A step takes axes of one label to another, at a price
that depends on how many of each class they are, so every path has a path of the same price in the
quotient, and the cheapest of these is a lower bound. The quotient is far smaller: on six axes of
extent 2 a matrix has 84 states up to the order, and 4096 in all.

Sizes are forgotten as well, but for the bytes of the whole tensor: any dim may be split any number
of times. Then a step may leave the dims alone that neither the sources nor the targets split: what
it splits along one of these can be split along another instead. So tensors are alike that have as
many dims which are split, and as many bytes; and all these dims may swap names, so that a search
begins at one start of those that then are equal.

The quotient has all states if they are few, else those of the core (`states`) and of what is asked
for: every state that a real path can visit. Prices must depend on extents and links only.
`tests/sbp/test_path_bounds.py` compares the bounds with true shortest paths on all meshes of at
most four axes, for every entry of the table of collectives.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .collectives import COLLECTIVES, Collectives
from .edges import distinct_pairs
from .layout import Codes, Floats, Ints, TensorSpec, repeated_parts
from .mesh import Mesh
from .quotient import CLOSED_DIMS, Quotient, QuotientGraph, Replaced
from .redistribute import PriceFn
from .shortest_paths import follow
from .symmetry import dual, names_by_rank

_TIE = 1e-12  # relative: sums of the same costs in another order differ by rounding
_SINGLE = 2e-6  # relative error of a sum of single precision


@dataclass(frozen=True)
class _Sort:
    """What bounds know of a tensor: how many of its dims are split, and its bytes."""

    dims: int
    bytes: int


@dataclass(frozen=True)
class _Way:
    """What is asked of a search, by distinct counts.

    asked:  words of the starts, renamed; called: which of the renamings each has
    ends:   [renamings, ends] words
    start_of, end_of: the number of each state that was asked for
    """

    asked: Ints
    called: Ints
    start_of: Ints
    ends: Ints
    end_of: Ints


@dataclass(eq=False)
class _Found:
    """Seconds from some states to all of a graph, for one sort; rows: by the state's word."""

    graph: QuotientGraph
    rows: dict[int, int] = field(default_factory=dict)
    table: list[Floats] = field(default_factory=list)

    def add(self, words: Ints, seconds: Floats) -> None:
        self.rows.update(zip(words.tolist(), itertools.count(len(self.rows)), strict=False))
        self.table = [np.concatenate([*self.table, seconds])]

    def has(self, way: _Way) -> bool:
        return self.rows.keys() >= set(way.asked.tolist()) and self.graph.has(way.ends)

    def between(self, way: _Way) -> Floats:
        """From each distinct start to each distinct end."""
        at = np.array([self.rows[word] for word in way.asked.tolist()], dtype=np.int64)
        to = np.searchsorted(self.graph.words, way.ends)
        return self.table[0].take(at[:, None] * len(self.graph.words) + to[way.called])


@dataclass
class PathBounds:
    """Bounds on one mesh at one price."""

    mesh: Mesh
    price: PriceFn
    collectives: Collectives = COLLECTIVES
    _asked: dict[int, dict[bytes, Ints]] = field(default_factory=dict, repr=False)
    _graphs: dict[int, QuotientGraph] = field(default_factory=dict, repr=False)
    _open: dict[int, list[tuple[_Sort, Codes, Codes]]] = field(default_factory=dict, repr=False)
    _found: dict[_Sort, _Found] = field(default_factory=dict, repr=False)
    _known_ways: dict[Hashable, _Way] = field(default_factory=dict, repr=False)
    _words: dict[tuple[int, bytes], tuple[Ints, Ints, Ints]] = field(
        default_factory=dict, repr=False
    )
    _names: dict[tuple[int, bytes], tuple[Ints, Ints, Ints]] = field(
        default_factory=dict, repr=False
    )
    _known_pairs: dict[tuple[bytes, bytes], tuple[Ints, Ints]] = field(
        default_factory=dict, repr=False
    )

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
        first, _ = self._pairs(given, kept)
        self.ask(spec, given[first], kept[first])

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Floats:
        """[n, m] seconds that no path from a source to a target falls below."""
        found, way, swapped = self._answer(*_sorted(spec, sources, targets))
        seconds = found.between(way).take(way.start_of, axis=0).take(way.end_of, axis=1)
        return seconds.T if swapped else seconds

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Floats:
        """[n] the same from each row of `given` to the same row of `kept`."""
        first, inverse = self._pairs(given, kept)
        found, way, _ = self._answer(*_sorted(spec, given[first], kept[first]))
        return found.between(way)[way.start_of, way.end_of][inverse]

    def _pairs(self, given: Codes, kept: Codes) -> tuple[Ints, Ints]:
        """`distinct_pairs`; of a parameter they are asked for with every micro-batch."""
        key = given.tobytes(), kept.tobytes()
        if key not in self._known_pairs:
            self._known_pairs[key] = distinct_pairs(given, kept)
        return self._known_pairs[key]

    def _ask(self, sort: _Sort, sources: Codes, targets: Codes) -> None:
        asked = self._asked.setdefault(sort.dims, {})
        for codes in (sources, targets):
            key = codes.tobytes()
            if key not in asked:
                asked[key] = np.unique(self._states.shadow(codes, sort.dims))
        self._open.setdefault(sort.dims, []).append((sort, sources, targets))

    def _answer(self, sort: _Sort, sources: Codes, targets: Codes) -> tuple[_Found, _Way, bool]:
        """What is known, and which of it is wanted; whether paths are read backwards."""
        found = self._known(sort, sources, targets)
        if found is None:
            self._ask(sort, sources, targets)
            self._search_all(sort.dims)
            found = self._known(sort, sources, targets)
            assert found is not None
        return found

    def _known(
        self, sort: _Sort, sources: Codes, targets: Codes
    ) -> tuple[_Found, _Way, bool] | None:
        """As `_answer`, None if it is not known yet."""
        known = self._found.get(sort)
        if known is None:
            return None
        for number, way in enumerate(self._ways(sort.dims, sources, targets)):
            if known.has(way):
                return known, way, number > 0
        return None

    def _search_all(self, dims: int) -> None:
        """One search for all that was asked for of as many dims, whatever the bytes."""
        graph = self._graph(dims)
        new: dict[_Sort, dict[int, None]] = {}
        asked = [(sort, list(self._ways(dims, *codes))) for sort, *codes in self._open.pop(dims)]
        # what few starts answer comes first: they are shared by what needs many either way
        for sort, ways in sorted(asked, key=lambda a: min(len(way.asked) for way in a[1])):
            known = self._found.get(sort)
            if known is None or known.graph is not graph:
                known = self._found[sort] = _Found(graph)
            also = new.setdefault(sort, {})
            starts = [[w for w in way.asked.tolist() if w not in known.rows] for way in ways]
            least = min(starts, key=lambda words: len({*words} - also.keys()))
            also.update(dict.fromkeys(least))
        new = {sort: words for sort, words in new.items() if words}
        if new:
            starts = [np.array(list(words), dtype=np.int64) for words in new.values()]
            rows = self._search(graph, [sort.bytes for sort in new], starts)
            for sort, words, own in zip(new, starts, rows, strict=True):
                self._found[sort].add(words, own)

    def _ways(self, dims: int, sources: Codes, targets: Codes) -> Iterator[_Way]:
        """What may be searched for an answer: paths, or their duals."""
        yield self._way(dims, sources, targets)
        if self._is_dual:
            yield self._way(dims, dual(targets), dual(sources))

    def _way(self, dims: int, starts: Codes, ends: Codes) -> _Way:
        """The distinct counts of starts and ends; the dims swap names, if they are not many."""
        key = dims, starts.tobytes(), ends.tobytes()
        if key in self._known_ways:
            return self._known_ways[key]
        words, start_of, counts = self._distinct(dims, starts)
        last, end_of, counts_last = self._distinct(dims, ends)
        if not 1 < dims <= CLOSED_DIMS:
            nothing = np.zeros(len(words), dtype=np.int64)
            way = _Way(words, nothing, start_of, last[None], end_of)
            return self._known_ways.setdefault(key, way)
        asked, called, powers = self._renamed(dims, words, counts)
        renamed = np.tensordot(powers, counts_last, axes=((1, 2), (1, 2)))
        way = _Way(asked, called, start_of, renamed, end_of)
        return self._known_ways.setdefault(key, way)

    def _renamed(self, dims: int, words: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
        """Starts whose dims have swapped names: words, which names, and those as powers."""
        key = dims, words.tobytes()
        if key not in self._names:
            seldom = np.zeros((len(words), dims), dtype=np.int64)
            for number, axes in enumerate(self.classes):
                seldom = seldom * (len(axes) + 1) - counts[:, number, 2:]
            every = names_by_rank(seldom, dims, (tuple(range(dims)),))
            numbers = every @ dims ** np.arange(dims)
            _, first, called = np.unique(numbers, return_index=True, return_inverse=True)
            names = every[first]
            labels = np.hstack([np.tile([0, 1], (len(names), 1)), names + 2])
            powers = self._states.powers(dims)[:, labels].transpose(1, 0, 2)
            asked = (counts * powers[called]).sum(axis=(1, 2))
            self._names[key] = asked, called, powers
        return self._names[key]

    def _distinct(self, ndim: int, codes: Codes) -> tuple[Ints, Ints, Ints]:
        """The distinct words of states, which of these each has, and their counts."""
        key = ndim, codes.tobytes()
        if key not in self._words:
            words, which = np.unique(self._states.words(codes, ndim), return_inverse=True)
            self._words[key] = words, which, self._states.counts(words, ndim)
        return self._words[key]

    @cached_property
    def _is_dual(self) -> bool:
        """Whether a path read backwards costs the same (`symmetry`)."""
        return all(
            any((own == self._prices[back]).all() for back in inverses)
            for own, inverses in zip(self._prices, self.collectives.inverses, strict=True)
            if inverses
        )

    def _search(
        self, graph: QuotientGraph, sizes: Sequence[int], starts: Sequence[Ints]
    ) -> list[Floats]:
        """For tensors of so many bytes [starts, states]; all by one search."""
        kind, many, shards = graph.groups[0]
        alpha_s, s_per_byte = self._prices[kind, many].T
        s_per_byte = s_per_byte / shards
        prices = np.empty((len(kind), len(sizes)), dtype=np.float32)  # half the time
        for own, size in zip(prices.T, sizes, strict=True):
            own[:] = alpha_s + s_per_byte * size
        rows = [np.searchsorted(graph.words, words) for words in starts]
        which = np.repeat(np.arange(len(sizes)), [len(own) for own in rows])
        lengths = follow(
            len(graph.words), graph.src, graph.dst, prices,
            lambda: graph.phases, np.concatenate(rows), which, graph.groups[1],
        )  # fmt: skip
        # what was rounded up is taken off again
        seconds = lengths.astype(np.float64) * (1 - _SINGLE)
        return np.split(seconds, np.flatnonzero(np.diff(which)) + 1)

    @cached_property
    def _replaced(self) -> Replaced:
        numbers = self._states.numbers
        row_of = {tuple(many): row for row, many in enumerate(numbers.tolist())}
        shards = repeated_parts(
            [float(self.mesh.extents[axes[0]]) for axes in self.classes], numbers
        )
        entries, prices = self.collectives.entries, self._prices
        apart = np.full((len(entries), len(numbers)), -1)
        sums = np.zeros((len(entries), len(numbers)), dtype=bool)
        swaps = True
        scatters, gathers, moves = (
            self.collectives.where(lambda entry, turn=turn: entry.turn == turn)
            for turn in ("scatter", "gather", "move")
        )
        for kind, entry in enumerate(entries):
            alike = self.collectives.where(lambda other, name=entry.name: other.name == name)
            for row, many in enumerate(numbers):
                whole = prices[kind, row] * (1 + _TIE)
                if entry.turn == "sum":
                    both = prices[list(scatters), row][:, None] + prices[list(gathers), row]
                    sums[kind, row] = _no_dearer(both, whole)
                if not (entry.divides or entry.joins):
                    continue
                for number in np.flatnonzero(many):
                    one = np.zeros_like(many)
                    one[number] = 1
                    alone, rest = row_of[tuple(one)], row_of.get(tuple(many - one))
                    others = np.zeros((1, 2)) if rest is None else prices[list(alike), rest]
                    fewer = others / [1.0, shards[alone]]
                    both = prices[list(alike), alone][:, None] + fewer
                    if rest is not None and _no_dearer(both, whole):
                        apart[kind, row] = number
                    if not entry.is_local:
                        moved = prices[list(moves), alone] / [1.0, shards[row]]
                        swaps &= _no_dearer(fewer[:, None] + moved, whole)
        return Replaced(apart, sums, swaps)

    def _graph(self, dims: int) -> QuotientGraph:
        """The graph with all that was asked for so far."""
        known = self._graphs.get(dims)
        if known is not None and all(map(known.has, self._asked[dims].values())):
            return known
        asked = self._asked[dims].values()
        self._graphs[dims] = self._states.graph(dims, asked, self._replaced)
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


def _no_dearer(prices: Floats, whole: Floats) -> bool:
    """Whether any of [..., 2] latencies and seconds per byte is no more than `whole` in both."""
    return bool((prices <= whole).all(axis=-1).any())
