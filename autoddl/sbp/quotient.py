"""States of a tensor up to the order of the axes, and the graph of the steps between them.

Of such a state is known how often each label stands on each class of axes (of one extent and link
class). It is a number, its *word*, with a digit for each class and label but the last. A step takes
some axes of each class from one label to another; which they are is forgotten.

Where all states are there, no all-reduce is needed and all-to-alls are cheap enough (`Replaced`),
some cheapest path has its steps in the order of `_PHASES`:

- An axis that is sliced after it was gathered is as well left out of the gather and moved by an
  all-to-all. So only what was Broadcast from the start is sliced, and as well at once: then all
  other steps have fewer bytes.
- Read backwards, that is why nothing becomes Partial but at the end.
- In between, axes go from Partial to a split by reduce-scatters, from one split to another, and
  from a split to Broadcast by all-gathers, each axis in this order. Two neighbouring steps that are
  the other way round have different axes; if they change places, none has more bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .collectives import COLLECTIVES, TURNS, Collectives, Turn
from .edges import find
from .layout import Bools, Codes, Ints, repeated_parts
from .mesh import Mesh
from .placement import Placement
from .shortest_paths import Rounds
from .states import core_codes, without_a_label
from .symmetry import dual

CLOSED_DIMS = 4  # states are added for every order of so many dims: 24, but 120 of five
# Up to so many states the quotient graph is complete. With 1,000 or 4,000 the plans of gpt_0_35b on
# 2x16 and of dlrm on 2x8 are the same, in the same CPU time within noise.
_FEW_STATES = 2000
_PHASES: tuple[Turn, ...] = ("cut", "scatter", "move", "gather", "pad")


@dataclass(frozen=True)
class Replaced:
    """Which steps two others replace at no higher price.

    apart: [kinds, k] those along several axes, by one along an axis of this class, the first of a
           scatter or the last of a gather, and one along the rest; -1 if not
    sums:  [kinds, k] all-reduces, by a reduce-scatter and an all-gather
    swaps: any axis of a reduce-scatter or an all-gather may be left out of it, and be moved by an
           all-to-all, after or before it, at no higher price in all
    """

    apart: Ints
    sums: Bools
    swaps: bool


@dataclass(frozen=True, eq=False)
class QuotientGraph:
    """PathBounds states as ascending words, and the steps between them that others do not replace.

    shards: [n] into how many shards each splits the tensor
    many:   per edge, the row of `Quotient.numbers`
    phases: some cheapest path has the edges of each before those of the next
    """

    words: Ints
    shards: Ints
    src: Ints
    dst: Ints
    kind: Ints
    many: Ints
    phases: tuple[Rounds, ...]

    @cached_property
    def groups(self) -> tuple[Ints, Ints]:
        """The distinct (kind, many, fewer shards of both ends) [3, m], and which each edge has."""
        shards, level = np.unique(self.shards, return_inverse=True)
        shape = int(self.kind.max(initial=0)) + 1, int(self.many.max(initial=0)) + 1, len(shards)
        fewer = np.minimum(level[self.src], level[self.dst])
        keys = (self.kind * shape[1] + self.many) * shape[2] + fewer
        present = np.bincount(keys, minlength=math.prod(shape)) > 0
        kind, many, level = np.unravel_index(np.flatnonzero(present), shape)
        return np.stack([kind, many, shards[level]]), (np.cumsum(present) - 1)[keys]

    def has(self, words: Ints) -> bool:
        at = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return bool((self.words[at] == words).all())


@dataclass(frozen=True)
class Quotient:
    """The states on one mesh, up to the order of axes."""

    mesh: Mesh
    collectives: Collectives = COLLECTIVES

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
        """Words of the states and of those on their way to Broadcast (`StateGraph.joined`).

        And of their duals, which the core has as well.
        """
        found = [codes]
        while (codes != -1).any():
            codes = without_a_label(codes[(codes != -1).any(axis=1)])
            found.append(codes)
        rows = np.concatenate(found)
        return self.words(np.concatenate([rows, dual(rows)]), ndim)

    def graph(self, ndim: int, asked: Iterable[Ints], replaced: Replaced) -> QuotientGraph:
        """Of all states if they are few, else of those of the core and of the words `asked`."""
        labels = ndim + 2
        sizes = [len(axes) for axes in self.classes]
        if math.prod(math.comb(size + labels - 1, labels - 1) for size in sizes) > _FEW_STATES:
            core = self.words(core_codes(self.mesh, ndim, paired=True), ndim)
            words = np.unique(self._closed(np.concatenate([core, *asked]), ndim))
            return self._build(ndim, words, replaced, False)
        words = np.zeros(1, dtype=np.int64)
        for size, powers in zip(sizes, self.powers(ndim), strict=True):
            more = np.array(
                [
                    powers[list(held)].sum()
                    for held in itertools.combinations_with_replacement(range(labels), size)
                ]
            )
            words = (words[:, None] + more).ravel()
        sums = [replaced.sums[kind] for kind in self._in_turn("sum")]
        in_phases = ndim > 0 and replaced.swaps and bool(np.all(sums))
        return self._build(ndim, np.sort(words), replaced, in_phases)

    def _in_turn(self, turn: Turn) -> tuple[int, ...]:
        return self.collectives.where(lambda entry: entry.turn == turn)

    def counts(self, words: Ints, ndim: int) -> Ints:
        """[n, classes, labels]: the inverse of `words`."""
        counts = np.zeros((len(words), len(self.classes), ndim + 2), dtype=np.int64)
        left = words
        for number, axes in enumerate(self.classes):
            for label in range(ndim + 1):
                left, counts[:, number, label] = np.divmod(left, len(axes) + 1)
            counts[:, number, -1] = len(axes) - counts[:, number, :-1].sum(axis=1)
        return counts

    def _closed(self, words: Ints, ndim: int) -> Ints:
        """With all that they become if the dims swap names."""
        words = np.unique(words)
        if ndim > CLOSED_DIMS:
            return words
        counts, powers = self.counts(words, ndim), self.powers(ndim)
        orders = itertools.permutations(range(2, ndim + 2))
        return np.concatenate(
            [(counts[:, :, [0, 1, *order]] * powers).sum(axis=(1, 2)) for order in orders]
        )

    def _build(self, ndim: int, words: Ints, replaced: Replaced, in_phases: bool) -> QuotientGraph:
        powers, labels = self.powers(ndim), ndim + 2
        counts = self.counts(words, ndim)
        extents = [self.mesh.extents[axes[0]] for axes in self.classes]
        shards = repeated_parts(extents, counts[:, :, 2:].sum(axis=2))
        enough = []
        for source in range(labels):
            held = np.ones((len(words), len(self.numbers)), dtype=bool)
            for own, number in zip(counts[:, :, source].T, self.numbers.T, strict=True):
                held &= own[:, None] >= number
            enough.append(np.nonzero(held))
        edges = []
        for source, target in itertools.permutations(range(labels), 2):
            change = powers[:, target] - powers[:, source]
            ends = Placement(source - 2), Placement(target - 2)
            for kind in self.collectives.of_change(*ends):
                entry = self.collectives.entries[kind]
                src, many = enough[source]
                through = np.zeros(len(src), dtype=bool)  # there is a state to go through instead
                if entry.turn == "sum":
                    for split in powers.T[2:]:
                        to_split = self.numbers @ (split - powers[:, source])
                        through |= find(words[src] + to_split[many], words) >= 0
                    through &= replaced.sums[kind, many]
                else:
                    apart = replaced.apart[kind, many]
                    several = np.flatnonzero(apart >= 0)
                    moved = change[apart[several]]
                    if entry.joins:
                        moved = (self.numbers @ change)[many[several]] - moved
                    through[several] = find(words[src[several]] + moved, words) >= 0
                src, many = src[~through], many[~through]
                dst = find(words[src] + (self.numbers @ change)[many], words)
                there = dst >= 0
                src, many, dst = src[there], many[there], dst[there]
                edges.append(np.stack([src, dst, np.full(len(src), kind), many]))
        src, dst, kind, many = np.concatenate(edges, axis=1)
        turn = _turn(counts.sum(axis=1)[src], kind, self.collectives)
        if in_phases:
            phases = tuple(
                _rounds_of(np.flatnonzero(np.isin(kind, self._in_turn(own))), turn, dst)
                for own in _PHASES
            )
        else:
            phases = (Rounds.of(turn, dst),)
        return QuotientGraph(words, shards, src, dst, kind, many, phases)


def _rounds_of(edges: Ints, turn: Ints, dst: Ints) -> Rounds:
    """Of some edges."""
    own = Rounds.of(turn[edges], dst[edges])
    return Rounds(edges[own.order], own.bounds, own.turns)


def _turn(held: Ints, kind: Ints, collectives: Collectives) -> Ints:
    """[edges] ascending keys: of one kind of step, those come first that others follow.

    held: [edges, labels] on how many axes of the source each label is
    """
    partial, broadcast, axes = held[:, 0], held[:, 1], held.sum(axis=1)
    of_turn: dict[Turn, Ints] = {
        "pad": partial,
        "cut": axes - broadcast,
        "scatter": axes - partial,
        "move": np.zeros_like(axes),
        "gather": broadcast,
        "sum": axes - partial,
    }
    within = np.stack([of_turn[turn] for turn in TURNS])
    turn = np.array(collectives.turns)[kind]
    return turn * (axes + 1) + np.take_along_axis(within, turn[None], axis=0)[0]
