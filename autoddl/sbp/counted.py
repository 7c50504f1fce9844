"""Lower bounds of path prices: states up to the order of the axes.

Axes of one extent and link class are interchangeable but for the order in which splits nest. Forget
the order, and a state is how often each label stands on each class of axes. A step then takes axes
of one label to another, at the price that depends on how many of each class they are, and any path
has such a path of the same price in its shadow: the cheapest of these is a lower bound. There are
far fewer of them: on six axes of extent 2 a matrix has 84 counted states for 4096.

The counted states are all of them if they are few, else those of the core (`states`) and of what is
asked for: every state that a real path can visit. Prices must depend on extents and links only.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .edges import KIND_INDEX, KIND_TABLE, Bools, Codes, Floats, Ints
from .layout import TensorSpec
from .mesh import Mesh
from .needless import GROWS, SHRINKS, Halfway, is_needless
from .redistribute import PriceFn
from .relax import PLACE, Rounds, follow
from .states import core_codes, local_bytes, without_a_label
from .steps import FREE_KINDS, STEP_KINDS
from .symmetry import dual

_FEW_STATES = 2000
_TIE = 1e-12
_SINGLE = 2e-6  # relative error of a sum of single precision
_FREE = tuple(KIND_INDEX[kind] for kind in FREE_KINDS)


@dataclass(frozen=True, eq=False)
class _Graph:
    """Counted states as ascending words, and the steps between them.

    parts: [n, dims] into which each splits each dim; many: per edge, the row of `Counted.numbers`
    """

    words: Ints
    parts: Ints
    src: Ints
    dst: Ints
    kind: Ints
    many: Ints
    halfway: Halfway
    rounds: Rounds


@dataclass
class Counted:
    """Bounds on one mesh at one price."""

    mesh: Mesh
    price: PriceFn
    _asked: dict[int, list[Ints]] = field(default_factory=dict, repr=False)
    _graphs: dict[int, _Graph] = field(default_factory=dict, repr=False)
    _found: dict[TensorSpec, tuple[_Graph, dict[int, int], list[Floats]]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """The axes of each extent and link class."""
        found: dict[object, list[int]] = {}
        for number, axis in enumerate(self.mesh.axes):
            found.setdefault(axis, []).append(number)
        return tuple(map(tuple, found.values()))

    @cached_property
    def numbers(self) -> Ints:
        """[k, classes]: how many axes of each class a step may be along."""
        ranges = [range(len(axes) + 1) for axes in self.classes]
        return np.array(list(itertools.product(*ranges)), dtype=np.int64)[1:]

    @cached_property
    def _prices(self) -> Floats:
        """[kinds, k, 2] latency and seconds per byte."""
        prices = np.zeros((len(STEP_KINDS), len(self.numbers), 2))
        for row, many in enumerate(self.numbers):
            axes = sorted(
                axis
                for axes, number in zip(self.classes, many, strict=True)
                for axis in axes[:number]
            )
            for kind, name in enumerate(STEP_KINDS):
                if kind not in _FREE:
                    prices[kind, row] = self.price(name, tuple(axes))
        return prices

    def fits(self, ndim: int) -> bool:
        """Whether the counted states of a tensor have words that are numbers of 63 bits."""
        return math.prod(len(axes) + 1 for axes in self.classes) ** (ndim + 1) < 2**62

    def words(self, codes: Codes, ndim: int) -> Ints:
        """The counts of each row of codes [n, axes] as one number."""
        found = np.zeros(len(codes), dtype=np.int64)
        for axes, powers in zip(self.classes, self._powers(ndim), strict=True):
            held = codes[:, list(axes)]
            for label, power in zip(range(-2, ndim - 1), powers, strict=False):
                found += power * (held == label).sum(axis=1)
        return found

    def ask(self, spec: TensorSpec, sources: Codes, targets: Codes) -> None:
        """Announce that `seconds` will be called with these."""
        ndim = len(spec.shape)
        asked = self._asked.setdefault(ndim, [])
        asked.extend(np.unique(self._shadow(codes, ndim)) for codes in (sources, targets))

    def seconds(self, spec: TensorSpec, sources: Codes, targets: Codes) -> Floats:
        """[n, m] seconds that no path from a source to a target falls below."""
        graph = self._graph(spec, sources, targets)
        if spec not in self._found or self._found[spec][0] is not graph:
            self._found[spec] = graph, {}, []
        ways = [(sources, targets)]
        if self._has_duals(spec):
            ways.append((dual(targets), dual(sources)))
        words = [[self.words(codes, len(spec.shape)) for codes in way] for way in ways]
        _, rows, table = self._found[spec]
        new = [
            np.array([w for w in np.unique(starts).tolist() if w not in rows], dtype=np.int64)
            for starts, _ in words
        ]
        way = int(np.argmin([len(starts) for starts in new]))
        (starts, ends), new = words[way], new[way]
        if len(new):
            rows.update(zip(new.tolist(), range(len(rows), len(rows) + len(new)), strict=True))
            table[:] = [np.concatenate([*table, self._search(graph, spec, new)])]
        each, inverse = np.unique(starts, return_inverse=True)
        at = np.array([rows[w] for w in each.tolist()])[inverse]
        found = table[0][at[:, None], np.searchsorted(graph.words, ends)]
        return found.T if way else found

    def row_seconds(self, spec: TensorSpec, given: Codes, kept: Codes) -> Floats:
        """[n] the same from each row of `given` to the same row of `kept`."""
        both = np.hstack([given, kept])
        _, first, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
        return np.diagonal(self.seconds(spec, given[first], kept[first]))[inverse.ravel()]

    def _has_duals(self, spec: TensorSpec) -> bool:
        """Whether a path read backwards costs the same (`symmetry`)."""
        gather, scatter = (self._prices[KIND_INDEX[k]] for k in ("all_gather", "reduce_scatter"))
        return spec.is_float and bool((gather == scatter).all())

    def _search(self, graph: _Graph, spec: TensorSpec, starts: Ints) -> Floats:
        """[starts, states]"""
        bytes_, even = local_bytes(spec, graph.parts)
        prices = self._prices[graph.kind, graph.many]
        moved = np.maximum(bytes_[graph.src], bytes_[graph.dst])
        weights = prices[:, 0] + prices[:, 1] * moved
        weights[~(even[graph.src] & even[graph.dst])] = np.inf
        if not spec.is_float:
            weights[graph.kind == KIND_INDEX["to_partial"]] = np.inf
        parts, sums = self._divisible
        needless = is_needless(
            graph.halfway,
            parts[graph.kind, graph.many],
            (graph.kind == KIND_INDEX["all_reduce"]) & sums[graph.many],
            even,
        )
        weights[needless] = np.inf
        rows, every = np.searchsorted(graph.words, starts), np.arange(len(graph.words))
        single = weights.astype(np.float32)  # half the time; what is rounded up is taken off again
        found = follow(len(every), graph.src, graph.dst, single, graph.rounds, rows, every)
        found = found.astype(np.float64) * (1 - _SINGLE)
        found[~even[rows]] = np.inf
        found[:, ~even] = np.inf
        return found

    @cached_property
    def _divisible(self) -> tuple[Bools, Bools]:
        """[kinds, k] what a step along one axis and one along the rest replace; [k] all-reduces."""
        row_of = {tuple(many): row for row, many in enumerate(self.numbers.tolist())}
        extents = np.array([self.mesh.extents[axes[0]] for axes in self.classes], dtype=float)
        parts = np.zeros((len(STEP_KINDS), len(self.numbers)), dtype=bool)
        for row, many in enumerate(self.numbers):
            if many.sum() < 2:
                continue
            for kind in (*GROWS, *SHRINKS):
                one = np.zeros_like(many)
                one[_peeled(many, kind)] = 1
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

    def _powers(self, ndim: int) -> Ints:
        """[classes, labels]: what an axis adds to a word; the last label's number is implied."""
        powers = np.zeros((len(self.classes), ndim + 2), dtype=np.int64)
        power = 1
        for row, axes in zip(powers, self.classes, strict=True):
            for label in range(ndim + 1):
                row[label] = power
                power *= len(axes) + 1
        return powers

    def _shadow(self, codes: Codes, ndim: int) -> Ints:
        """Words of the states and of those on their way to Broadcast (`StateGraph.joined`).

        And of their duals, which the core has as well.
        """
        found = [codes]
        while (codes != -1).any():
            codes = without_a_label(codes[(codes != -1).any(axis=1)])
            found.append(codes)
        rows = np.concatenate(found)
        return self.words(np.concatenate([rows, dual(rows)]), ndim)

    def _graph(self, spec: TensorSpec, sources: Codes, targets: Codes) -> _Graph:
        """The graph with all that was asked for so far."""
        ndim = len(spec.shape)
        known = self._graphs.get(ndim)
        if known is not None:
            wanted = np.concatenate([self.words(codes, ndim) for codes in (sources, targets)])
            at = np.minimum(np.searchsorted(known.words, wanted), len(known.words) - 1)
            if (known.words[at] == wanted).all():
                return known
        labels = ndim + 2
        sizes = [len(axes) for axes in self.classes]
        if math.prod(math.comb(size + labels - 1, labels - 1) for size in sizes) <= _FEW_STATES:
            words = np.zeros(1, dtype=np.int64)
            for size, powers in zip(sizes, self._powers(ndim), strict=True):
                more = np.array(
                    [
                        powers[list(held)].sum()
                        for held in itertools.combinations_with_replacement(range(labels), size)
                    ]
                )
                words = (words[:, None] + more).ravel()
        else:
            self.ask(spec, sources, targets)
            core = self.words(core_codes(self.mesh, ndim), ndim)
            words = np.concatenate([core, *self._asked[ndim]])
        self._graphs[ndim] = self._build(ndim, np.unique(words))
        return self._graphs[ndim]

    def _build(self, ndim: int, words: Ints) -> _Graph:
        powers, labels = self._powers(ndim), ndim + 2
        counts = np.zeros((len(words), len(self.classes), labels), dtype=np.int64)
        left = words
        for number, axes in enumerate(self.classes):
            for label in range(labels - 1):
                left, counts[:, number, label] = np.divmod(left, len(axes) + 1)
            counts[:, number, -1] = len(axes) - counts[:, number, :-1].sum(axis=1)
        extents = np.array([self.mesh.extents[axes[0]] for axes in self.classes])
        parts = (extents[:, None] ** counts[:, :, 2:]).prod(axis=1)
        peeled = {
            kind: np.array([_peeled(many, kind) for many in self.numbers])
            for kind in (*GROWS, *SHRINKS)
        }

        def rows(wanted: Ints) -> Ints:
            at = np.minimum(np.searchsorted(words, wanted), len(words) - 1)
            return np.where(words[at] == wanted, at, -1)

        edges, parted, summed = [], [], []
        for source, target in itertools.permutations(range(labels), 2):
            enough = (counts[:, None, :, source] >= self.numbers).all(axis=2)
            change = powers[:, target] - powers[:, source]
            src, many = np.nonzero(enough)
            dst = rows(words[src] + (self.numbers @ change)[many])
            src, many, dst = src[dst >= 0], many[dst >= 0], dst[dst >= 0]
            kind = int(KIND_TABLE[min(source - 2, 0), min(target - 2, 0)])
            edges.append(np.stack([src, dst, np.full(len(src), kind), many]))
            half = np.full(len(src), -1)
            if kind in peeled:
                several = self.numbers[many].sum(axis=1) > 1
                one = change[peeled[kind][many[several]]]
                half[several] = rows(words[src[several]] + one)
            parted.append(half)
            through = np.full((ndim, len(src)), -1)
            for dim in range(ndim if kind == KIND_INDEX["all_reduce"] else 0):
                to_split = self.numbers @ (powers[:, dim + 2] - powers[:, source])
                through[dim] = rows(words[src] + to_split[many])
            summed.append(through)
        src, dst, kind, many = np.concatenate(edges, axis=1)
        halfway = Halfway(np.concatenate(parted), np.concatenate(summed, axis=1))
        return _Graph(words, parts, src, dst, kind, many, halfway, Rounds.of(PLACE[kind], dst))


def _peeled(many: Ints, kind: int) -> int:
    """The class of the axis that goes first: splits grow from the first, shrink from the last."""
    present = np.flatnonzero(many)
    return int(present[0] if kind in GROWS else present[-1])
