"""Edges of a state graph that two others replace at no higher price.

An edge along several axes may be one along the first or last of them and one along the rest, with a
state halfway:

    all-gather         the last axis, then the rest (so are S -> P and slices read backwards)
    reduce-scatter     the first axis, then the rest (so are slices)
    all-reduce         a reduce-scatter to some S(d), then an all-gather, along the same axes

What replaces an edge has fewer axes or, for an all-reduce, another kind, and may be replaced in
turn; so all needless edges can go at once and no distance changes. An all-to-all in two steps moves
more. Which state lies halfway depends on the graph alone, what two steps cost on the prices
(`redistribute`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .collectives import COLLECTIVES
from .edges import KIND_INDEX, STAY, end_axes, finder, words
from .layout import Bools, Codes, Ints

GROWS = COLLECTIVES.where(lambda entry: entry.divides)
SHRINKS = COLLECTIVES.where(lambda entry: entry.joins)
_GROW = np.isin(np.arange(STAY + 1), GROWS)
_SHRINK = np.isin(np.arange(STAY + 1), SHRINKS)
_ALL_REDUCE = KIND_INDEX["all_reduce"]


@dataclass(frozen=True)
class Halfway:
    """Edges with a state halfway, by their numbers.

    parted: those with a state after one axis of several
    sums:   all-reduces; summed: [dims, sums] row of the state after the reduce-scatter, or -1
    """

    parted: Ints
    sums: Ints
    summed: Ints


def halfway(codes: Codes, num_core: int, ndim: int, edges: Ints) -> Halfway:
    """Of edges [4, m] between states of which the first `num_core` ones ascend."""
    src, dst, kind, mask = edges
    axes = codes.shape[1]
    first, last = end_axes(axes)
    rows = finder(words(codes[:num_core], ndim), (ndim + 2) ** axes)
    powers = (ndim + 2) ** np.arange(axes - 1, -1, -1, dtype=np.int64)
    own = words(codes, ndim)

    # no edge leads from the core to a source outside it, nor back from a target outside it
    leads = (src < num_core) | (dst < num_core)
    parts = (_GROW | _SHRINK)[kind] & (mask & (mask - 1) != 0)
    several = np.flatnonzero(parts & leads)
    axis = np.where(_GROW[kind[several]], first[mask[several]], last[mask[several]])
    change = codes[dst[several], axis].astype(np.int64) - codes[src[several], axis]
    parted = several[rows(own[src[several]] + change * powers[axis]) >= 0]

    sums = np.flatnonzero((kind == _ALL_REDUCE) & leads)
    summed = np.empty((ndim, len(sums)), dtype=np.int64)
    along = mask[sums]
    after = np.arange(axes) > first[:, None]
    later = after[along] & (along[:, None] >> np.arange(axes) & 1 == 0)
    moved = (np.arange(1 << axes)[:, None] >> np.arange(axes) & 1) @ powers
    for dim in range(ndim):
        free = ~((codes[src[sums]] == dim) & later).any(axis=1)
        found = rows(own[src[sums]] + (dim + 2) * moved[along])
        summed[dim] = np.where(free, found, -1)
    return Halfway(parted, sums, summed)


def needless(halfway: Halfway, group_of: Ints, parts: Bools, sums: Bools, even: Bools) -> Ints:
    """Edges that go. Of the groups of edges: `parts` and `sums`: two steps cost no more.

    group_of: [edges]; even: [states]
    """
    parted = halfway.parted[parts[group_of[halfway.parted]]]
    is_summed = sums[group_of[halfway.sums]]
    is_even = np.append(even, False)  # the last for no state
    return np.concatenate([parted, halfway.sums[is_summed & is_even[halfway.summed].any(axis=0)]])
