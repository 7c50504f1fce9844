"""The states of a tensor up to the order of axes, and the steps between them.

Of such a state is known how often each label stands on each class of axes (of one extent and link
class). It is a number, its *word*, with a digit for each class and label but the last. A step takes
some axes of each class from one label to another; which they are is forgotten.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .collectives import COLLECTIVES, Collectives
from .edges import find
from .layout import Codes, Floats, Ints, repeated_parts
from .mesh import Mesh
from .placement import Placement
from .states import core_codes, without_a_label

# Up to so many states the quotient graph is complete. With 1,000 or 4,000 the plans of gpt_0_35b on
# 2x16 and of dlrm on 2x8 are the same, in the same CPU time within noise.
_FEW_STATES = 2000


@dataclass(frozen=True, eq=False)
class QuotientGraph:
    """States as ascending words, and the steps between them.

    kind:   per edge, the collective's place in the table
    many:   per edge, the row of `Quotient.numbers`
    shards: per edge, the fewer of both ends' shards of the tensor
    """

    words: Ints
    src: Ints
    dst: Ints
    kind: Ints
    many: Ints
    shards: Floats

    def has(self, words: Ints) -> bool:
        return bool((find(words, self.words) >= 0).all())


@dataclass(frozen=True)
class Quotient:
    """The states on one mesh, up to the order of axes."""

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
        return QuotientGraph(words, src, dst, kind, many, fewer)
