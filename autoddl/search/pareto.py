"""Sums of fronts without those that another one beats in both cost and memory.

Fronts are long arrays of pairs (cost, memory), in the order of memory. There are two ways to the
same sums, bit for bit: arrays, which make many sums and sort them, and compiled loops (`compiled`),
which merge one shifted front after another into the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._native.library import Loops
from .budget import TooMany
from .problem import Table

Pairs = NDArray[np.float64]  # [n, 2]: cost, memory
Numbers = NDArray[np.int64]
_CHUNK = 2_000_000  # pairs that are looked at together


@dataclass(frozen=True)
class Fronts:
    """The fronts of a table's entries, which are numbered as in its `ravel()`.

    entry: [n] ascending; pairs: [n, 2], of an entry the more memory, the less cost; their score
    start: [entries + 1]
    """

    entry: Numbers
    pairs: Pairs
    score: Table
    start: Numbers

    @staticmethod
    def of(size: int, entry: Numbers, pairs: Pairs, price: float) -> Fronts:
        """The fronts of so many entries, from pairs in the order of their entries."""
        start = np.searchsorted(entry, np.arange(size + 1))
        return Fronts(entry, pairs, pairs[:, 0] + price * pairs[:, 1], start)

    def some(self, keep: NDArray[np.bool_], price: float) -> Fronts:
        """The fronts of the same entries with these pairs only."""
        if keep.all():
            return self
        stay = np.flatnonzero(keep)
        pairs = self.pairs.take(stay, axis=0)  # much faster than by `keep`
        return Fronts.of(len(self.start) - 1, self.entry[stay], pairs, price)

    @cached_property
    def by_score(self) -> Numbers:
        """Numbers of the pairs of each entry by ascending score."""
        return np.lexsort((self.score, self.entry))

    @cached_property
    def lengths(self) -> Numbers:
        return np.diff(self.start)

    @cached_property
    def filled(self) -> Numbers:
        """The entries that have pairs."""
        return np.flatnonzero(self.lengths)

    def at(self, entry: int) -> Pairs:
        return self.pairs[self.start[entry] : self.start[entry + 1]]

    def alive(self, entries: Numbers) -> NDArray[np.bool_]:
        """Which of these entries have pairs."""
        return self.lengths[entries] > 0


@dataclass(frozen=True)
class Matches:
    """Entries `one` of `first` and `two` of `second`, of which sums make the entries `made`.

    room: the most that the sums may score
    """

    first: Fronts
    second: Fronts
    one: Numbers
    two: Numbers
    made: Numbers
    room: Table

    @cached_property
    def numbers(self) -> tuple[Numbers, Numbers]:
        """Each match with each pair of its entry of the first: number of match and pair."""
        lengths = self.first.lengths[self.one]
        match = np.repeat(np.arange(len(self.one)), lengths)
        return match, within(lengths) + np.repeat(self.first.start[self.one], lengths)


def on_arrays(matches: Matches, most: int) -> tuple[int, Numbers, Pairs]:
    """How many pairs were looked at; entries and pairs of the sums' fronts. Raises TooMany."""
    first, second = matches.first, matches.second
    match, number = matches.numbers
    # how many pairs of the second, in the order of scores, keep each of the first's below
    room = matches.room[match] - first.score[number]
    two, made = matches.two[match], matches.made[match]
    counts = counts_below(second, second.score[second.by_score], two, room)
    looked = int(counts.sum()) + len(match)
    if looked > most:
        raise TooMany
    ends = np.cumsum(counts)
    entries: list[Numbers] = [np.zeros(0, np.int64)]
    pairs: list[Pairs] = [np.zeros((0, 2))]
    low = 0
    while low < len(match):
        before = ends[low - 1] if low else 0
        high = max(low + 1, int(np.searchsorted(ends, before + _CHUNK)))
        some = counts[low:high]
        a = np.repeat(number[low:high], some)
        b = second.by_score[np.repeat(second.start[two[low:high]], some) + within(some)]
        entry, summed = np.repeat(made[low:high], some), first.pairs[a] + second.pairs[b]
        keep = undominated(entry, summed)
        entries.append(entry[keep])
        pairs.append(summed[keep])
        low = high
    entry, summed = np.concatenate(entries), np.concatenate(pairs)
    if len(entries) > 2:
        keep = undominated(entry, summed)
        entry, summed = entry[keep], summed[keep]
    return looked, entry, summed


def in_loops(compiled: Loops, matches: Matches, most: int) -> tuple[int, Numbers, Pairs]:
    """`on_arrays` by compiled loops."""
    first, second = matches.first, matches.second
    order = matches.made.argsort(kind="stable")
    looked, entry, pairs = compiled.sum_fronts(
        (matches.one[order], matches.two[order], matches.made[order], matches.room[order]),
        (first.start, first.pairs, first.score),
        (second.start, second.pairs, second.score),
        most,
    )
    if looked > most:
        raise TooMany
    return looked, entry, pairs


def within(lengths: Numbers) -> Numbers:
    """0, 1, ... for each length."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def counts_below(fronts: Fronts, values: Table, entry: Numbers, most: Table) -> Numbers:
    """For each of the entries, how many pairs have a value of at most `most`.

    values: of the pairs, ascending in each entry
    """
    every = np.sort(values)
    rank = np.searchsorted(every, values)
    wide = len(every) + 1
    keys = fronts.entry * wide + rank
    limits = entry * wide + np.searchsorted(every, most, side="right")
    return np.searchsorted(keys, limits) - fronts.start[entry]


def undominated(entry: Numbers, pairs: Pairs) -> Numbers:
    """Numbers of the pairs of each entry of which no other is better in both, by memory."""
    order = np.lexsort((pairs[:, 0], pairs[:, 1], entry))
    if not len(order):
        return order
    entry, cost = entry[order], pairs[order, 0]
    rank = np.unique(cost, return_inverse=True)[1].ravel()
    falling = rank - entry * (len(rank) + 1)
    least = np.minimum.accumulate(falling)
    return order[np.concatenate(([True], falling[1:] < least[:-1]))]


def apart(entry: Numbers, pairs: Pairs, step: float) -> Numbers:
    """Numbers of the pairs of fronts, of those with as many whole steps of cost only the first."""
    steps = np.floor(pairs[:, 0] / step)
    differ = (steps[1:] != steps[:-1]) | (entry[1:] != entry[:-1])
    return np.append(0, np.flatnonzero(differ) + 1)[: len(entry)]
