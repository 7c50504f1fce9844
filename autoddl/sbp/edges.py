"""Which steps lead from which of many states to which: `steps.is_legal` in arrays.

A state is a row of label codes (`Placement.code`), and a number in base ndim + 2 (its *word*). An
edge is a column of source row, target row, the kind's index in STEP_KINDS and the axes as a bit
mask (axis a is bit a).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .mesh import Mesh
from .placement import Placement
from .steps import STEP_KINDS, step_kind

_PAIRS_PER_LOOK = 0.6  # of states, in the time of one look at a state and a mask
_PAIR_ROWS = 128
_LOOKS = 1 << 20  # at a state and a mask, in one array
_TABLE_WORDS = 1 << 21

Codes = NDArray[np.int8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

KIND_INDEX = {kind: i for i, kind in enumerate(STEP_KINDS)}
STAY = len(STEP_KINDS)  # the kind index of an edge between two nodes of the same state


def words(codes: Codes, ndim: int) -> Ints:
    """Each row of codes [n, axes] as one number; axis 0 is the most significant digit."""
    return (codes.astype(np.int64) + 2) @ _powers(codes.shape[1], ndim)


def mask_axes(mask: int) -> tuple[int, ...]:
    """The axes of a bit mask, ascending."""
    return tuple(a for a in range(mask.bit_length()) if mask >> a & 1)


@lru_cache(maxsize=16)
def end_axes(num_axes: int) -> tuple[Ints, Ints]:
    """The first and the last axis of each bit mask (of none: 0)."""
    masks = np.arange(1 << num_axes)
    last = np.zeros(len(masks), dtype=np.int64)
    for axis in range(num_axes):
        last[masks >> axis > 0] = axis
    return last[masks & -masks], last


def edges_between(sources: Codes, targets: Codes, ndim: int) -> Ints:
    """[4, m]: the legal steps from rows of `sources` to rows of `targets`, both ascending.

    Source row, target row, kind index and axes mask of each, sorted. It is `steps.is_legal` for
    many states at once. The rule is the same for a step and its reverse, so the fewer are asked.
    """
    few = max(len(sources), len(targets)) < _PAIRS_PER_LOOK * (1 << sources.shape[1])
    if few and sources.shape[1]:
        src, dst, source, target, mask = _changes_by_pairs(sources, targets, ndim)
    elif len(sources) > len(targets):
        targets, sources = sources, targets
        dst, src, target, source, mask = _changes(sources, targets, ndim)
    else:
        src, dst, source, target, mask = _changes(sources, targets, ndim)
    kind = KIND_TABLE[np.minimum(source, 0), np.minimum(target, 0)]
    return sorted_edges(np.stack([src, dst, kind, mask]))


def is_divisible(codes: Codes, edges: Ints, mesh: Mesh, ndim: int) -> Bools:
    """Edges that a core does without: along several axes of one link class, with a state half-way.

    One step for each axis moves the same bytes (n/4 + n/2 = 3n/4 for an all-gather over 2 x 2), in
    no more rounds. An all-to-all or all-reduce in two steps moves more, and so may steps that mix
    link classes.
    """
    src, dst, kind, mask = edges
    link_masks = [
        sum(1 << a for a, axis in enumerate(mesh.axes) if axis.link == link)
        for link in ("inter", "intra")
    ]
    one_link = np.logical_or.reduce([mask & other == 0 for other in link_masks])
    whole = (kind == KIND_INDEX["all_to_all"]) | (kind == KIND_INDEX["all_reduce"])
    several = np.flatnonzero(one_link & (mask & (mask - 1) != 0) & ~whole)
    src, dst, kind, mask = edges[:, several]
    # A split grows from its first axis on and shrinks from its last.
    grows = np.isin(kind, [KIND_INDEX["reduce_scatter"], KIND_INDEX["slice"]])
    first, last = end_axes(mesh.num_axes)
    axis = np.where(grows, first[mask], last[mask])
    change = codes[dst, axis].astype(np.int64) - codes[src, axis]
    known = words(codes, ndim)
    halfway = known[src] + change * _powers(mesh.num_axes, ndim)[axis]
    divisible = np.zeros(edges.shape[1], dtype=bool)
    divisible[several] = finder(known, (ndim + 2) ** mesh.num_axes)(halfway) >= 0
    return divisible


def _changes(states: Codes, others: Codes, ndim: int) -> Ints:
    """[5, m]: row of `states`, row of `others`, label in each, mask of the axes that differ.

    With the axes of each label as a mask: a step takes axes that carry the label of its first one,
    and no later axis may carry the split that it takes them from, or to.
    """
    num_axes = states.shape[1]
    row_of = finder(words(others, ndim), (ndim + 2) ** num_axes)
    powers, own = _powers(num_axes, ndim), words(states, ndim)
    small = np.int16 if num_axes < 15 else np.int64
    bits = (1 << np.arange(num_axes)).astype(small)
    masks = np.arange(1, 1 << num_axes).astype(small)
    first_bit = masks & -masks
    first_axis = end_axes(num_axes)[0][1:]
    moved = (masks[:, None] >> np.arange(num_axes) & 1) @ powers
    found = [np.empty((5, 0), dtype=np.int64)]
    step = max(1, _LOOKS // len(masks)) if num_axes else 1
    for begin in range(0, len(states) if num_axes else 0, step):
        some = states[begin : begin + step]
        held = (some[:, :, None] == np.arange(-2, ndim)).transpose(0, 2, 1) @ bits
        alike = np.take_along_axis(held, some.astype(np.int64) + 2, axis=1)
        # a split is left from its last axes on: no other one that it holds comes after the first
        split = np.where(some < 0, small(0), alike)
        alike, split = alike.take(first_axis, axis=1), split.take(first_axis, axis=1)
        movable = (masks & ~alike) == 0
        movable &= (split & ~masks) < first_bit
        row, number = np.divmod(np.flatnonzero(movable), len(masks))
        label = some[row, first_axis[number]].astype(np.int64)
        here = row + begin
        for other in range(-2, ndim):
            legal = label != other
            if other >= 0:
                legal &= held[row, other + 2] < first_bit[number]
            at = np.flatnonzero(legal)
            there = row_of(own[here[at]] + (other - label[at]) * moved[number[at]])
            at, there = at[there >= 0], there[there >= 0]
            to = np.full(len(at), other)
            along = masks[number[at]].astype(np.int64)
            found.append(np.stack([here[at], there, label[at], to, along]))
    return np.concatenate(found, axis=1)


def finder(known: Ints, count: int) -> Callable[[Ints], Ints]:
    """A function from words, all below `count`, to their places in `known`, or -1."""
    if count <= _TABLE_WORDS:
        table = np.full(count, -1, dtype=np.int32)
        table[known] = np.arange(len(known))
        return table.take

    def find(wanted: Ints) -> Ints:
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, at, -1)

    return find


def _changes_by_pairs(states: Codes, others: Codes, ndim: int) -> Ints:
    """`_changes` from a look at every pair: quicker if there are more masks than states.

    Where two states differ, the labels of each are equal if the sum of their squares times their
    number is the square of their sum. Sums over the axes with equal labels are matrix products.
    """
    labels = np.arange(-2, ndim, dtype=np.float32)
    own, known = (
        (codes[:, :, None] == labels).reshape(len(codes), codes.shape[1] * len(labels))
        for codes in (states, others)
    )
    own, known = own.astype(np.float32), known.astype(np.float32).T
    first_power = np.tile(labels, states.shape[1])
    powers = first_power, first_power**2
    found = [np.empty((5, 0), dtype=np.int64)]
    for first in range(0, len(states), _PAIR_ROWS):
        part = own[first : first + _PAIR_ROWS]
        number = states.shape[1] - part @ known
        equal = [(part * power) @ known for power in powers]
        legal = number > 0
        for total, square in (
            [(part @ power)[:, None] for power in powers],
            [power @ known for power in powers],
        ):
            legal &= (square - equal[1]) * number == (total - equal[0]) ** 2
        here, there = np.nonzero(legal)
        here = here + first
        differs = states[here] != others[there]
        axis = differs.argmax(axis=1)
        label = states[here, axis].astype(np.int64)
        other = others[there, axis].astype(np.int64)
        after = (np.arange(states.shape[1]) > axis[:, None]) & ~differs
        held = np.where(after, states[here], np.int8(-1))
        blocked = (held >= 0) & ((held == label[:, None]) | (held == other[:, None]))
        free = ~blocked.any(axis=1)
        mask = differs @ (1 << np.arange(states.shape[1], dtype=np.int64))
        found.append(np.stack([here, there, label, other, mask])[:, free])
    return np.concatenate(found, axis=1)


def sorted_edges(edges: Ints) -> Ints:
    """Sorted by source, kind, axes and target."""
    src, dst, kind, mask = edges
    key = src  # one number of what orders edges, in turn
    for column in (kind, mask, dst):
        key = key * (int(column.max(initial=0)) + 1) + column
    return edges[:, np.argsort(key, kind="stable")]


def _powers(num_axes: int, ndim: int) -> Ints:
    return (ndim + 2) ** np.arange(num_axes - 1, -1, -1, dtype=np.int64)


def _kind_table() -> Ints:
    """[source, target] -> kind index, with every split written as 0 (negative codes wrap)."""
    table = np.full((3, 3), -1, dtype=np.int64)
    for source, target in itertools.product((-2, -1, 0), repeat=2):
        if source == target == 0:
            table[source, target] = KIND_INDEX["all_to_all"]
        elif source != target:
            table[source, target] = KIND_INDEX[step_kind(Placement(source), Placement(target))]
    return table


KIND_TABLE = _kind_table()
