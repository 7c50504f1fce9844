"""The legal collective steps between many states, as arrays: `collectives.is_legal` vectorised.

A state is a row of label codes (`Placement.code`), equivalently a number in base ndim + 2, its
*word*. An edge is a column of source row, target row, kind (its index in the table of collectives)
and the axes as a bit mask (axis a is bit a). Two algorithms for one change are parallel edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .collectives import COLLECTIVES, Collective, Collectives
from .layout import Bools, Codes, Ints
from .mesh import Mesh
from .placement import Placement

STAY = Collectives.MOST  # the kind of an edge between two nodes of the same state


def words(codes: Codes, ndim: int) -> Ints:
    """Each row of codes [n, axes] as one number; axis 0 is the most significant digit."""
    return (codes.astype(np.int64) + 2) @ _powers(codes.shape[1], ndim)


def row_numbers(rows: NDArray[np.signedinteger[Any]]) -> Ints:
    """One number for each row, ascending as the rows do; numbers sort faster than rows."""
    low, length = int(rows.min(initial=0)), rows.shape[1]
    base = int(rows.max(initial=0)) - low + 1
    if base**length > np.iinfo(np.int64).max:
        return np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    numbers = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        numbers *= base
        numbers += column
        numbers -= low
    return numbers


def distinct_pairs(first: Codes, second: Codes) -> tuple[Ints, Ints]:
    """The index of each distinct pair of rows, pairs ascending, and each row's pair number."""
    numbers = row_numbers(np.hstack([first, second]))
    _, rows, which = np.unique(numbers, return_index=True, return_inverse=True)
    return rows, which


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


def edges_between(
    sources: Codes, targets: Codes, ndim: int, collectives: Collectives = COLLECTIVES
) -> Ints:
    """[4, m]: the legal steps from rows of `sources` to rows of `targets`, both ascending.

    The rows of the result are source row, target row, kind and axes mask, sorted. The rule is
    symmetric in a step and its reverse, so the test runs from the smaller of the two sets.
    """
    if not len(sources) or not len(targets) or not sources.shape[1]:
        return np.empty((4, 0), dtype=np.int64)
    if len(sources) <= len(targets):
        here, there, label, other, mask = _changes(sources, targets, ndim)
    else:
        there, here, other, label, mask = _changes(targets, sources, ndim)
    kind = KIND_TABLE[np.minimum(label, 0), np.minimum(other, 0)]
    return sorted_edges(with_algorithms(np.stack([here, there, kind, mask]), collectives))


def with_algorithms(edges: Ints, collectives: Collectives) -> Ints:
    """Edges [4, m] of default algorithms, with parallel edges for a collective's other ones."""
    others = [edges]
    for number, default in enumerate(collectives.defaults):
        if number != default:
            own = edges[:, edges[2] == default]
            own[2] = number
            others.append(own)
    return np.concatenate(others, axis=1) if len(others) > 1 else edges


def is_divisible(
    codes: Codes, edges: Ints, mesh: Mesh, ndim: int, collectives: Collectives = COLLECTIVES
) -> Bools:
    """True for edges that a reduced graph leaves out, as two other edges replace each of them.

    These are steps along several axes of one link class, of collectives that are `divisible`. An
    all-to-all or all-reduce in two steps moves more bytes, and so may steps that mix link classes.
    """
    mask = edges[3]
    link_masks = [
        sum(1 << a for a, axis in enumerate(mesh.axes) if axis.link == link)
        for link in ("inter", "intra")
    ]
    one_link = np.logical_or.reduce([mask & other == 0 for other in link_masks])
    return _divides(codes, edges, one_link, lambda entry: entry.divisible, ndim, collectives)


def is_needless(codes: Codes, edges: Ints, ndim: int, collectives: Collectives) -> Bools:
    """True for local steps along several axes that other local steps replace, which cost nothing.

    `codes` ascend. A third to two thirds of all local steps, and a fifth to a half of all edges.
    """
    every = np.ones(edges.shape[1], dtype=bool)
    return _divides(
        codes, edges, every, lambda entry: entry.divisible and entry.is_local, ndim, collectives
    )


def _divides(
    codes: Codes,
    edges: Ints,
    tried: Bools,
    holds: Callable[[Collective], bool],
    ndim: int,
    collectives: Collectives,
) -> Bools:
    """True for edges along several axes, of those tried, whose state after one axis is there."""
    src, dst, kind, mask = edges
    several = np.flatnonzero(
        tried & (mask & (mask - 1) != 0) & np.isin(kind, collectives.where(holds))
    )
    src, dst, kind, mask = edges[:, several]
    # A split grows from its first axis on and shrinks from its last.
    grows = np.isin(kind, collectives.where(lambda entry: entry.divides))
    num_axes = codes.shape[1]
    first, last = end_axes(num_axes)
    axis = np.where(grows, first[mask], last[mask])
    change = codes[dst, axis].astype(np.int64) - codes[src, axis]
    known = words(codes, ndim)
    halfway = known[src] + change * _powers(num_axes, ndim)[axis]
    found = np.zeros(edges.shape[1], dtype=bool)
    found[several] = find(halfway, known) >= 0
    return found


def _changes(states: Codes, others: Codes, ndim: int) -> Ints:
    """[5, m]: rows of `states` and `others` that one change makes equal, its labels, its axes.

    Any of the axes that carry a label may change it, but no axis outside of the change that comes
    after its first axis may carry a split that it takes away or brings (`collectives.Step`).
    """
    num_axes = states.shape[1]
    masks = np.arange(1 << num_axes)
    own, known = words(states, ndim), words(others, ndim)
    moved = (masks[:, None] >> np.arange(num_axes) & 1) @ _powers(num_axes, ndim)
    held = {label: (states == label) @ (1 << np.arange(num_axes)) for label in range(-2, ndim)}
    most = int((others[:, 1:] != others[:, :-1]).sum(axis=1).max())
    found = []
    for label in held:
        here, mask = _parts(held[label], most)
        onwards = -(mask & -mask)  # all axes from the first on
        if label >= 0:
            legal = held[label][here] & onwards & ~mask == 0
            here, mask, onwards = here[legal], mask[legal], onwards[legal]
        for other in held:
            if other == label:
                continue
            at = np.arange(len(here))
            if other >= 0:
                at = np.flatnonzero(held[other][here] & onwards == 0)
            there = find(own[here[at]] + (other - label) * moved[mask[at]], known)
            at, there = at[there >= 0], there[there >= 0]
            labels = np.full((2, len(at)), [[label], [other]])
            found.append(np.stack([here[at], there, *labels, mask[at]]))
    return np.concatenate(found, axis=1)


def _parts(held: Ints, most: int) -> tuple[Ints, Ints]:
    """Each row of `held` (bit masks), repeated for each of its mask's subsets (`_subsets`)."""
    each, of = np.unique(held, return_inverse=True)
    subsets = [_subsets(mask, most) for mask in each.tolist()]
    count = np.array([len(own) for own in subsets], dtype=np.int64)
    first, parts = (np.cumsum(count) - count)[of], count[of]
    here = np.repeat(np.arange(len(held)), parts)
    place = np.arange(len(here)) - np.repeat(np.cumsum(parts) - parts, parts)
    return here, np.concatenate(subsets)[first[here] + place]


@lru_cache(maxsize=1 << 12)
def _subsets(mask: int, most: int) -> Ints:
    """Those of a bit mask but the empty one that end at most so often inside it, ascending.

    Where a change ends between two axes of one label, their labels differ after it. On 13 axes the
    states of a core have few such places, and a fifth of the subsets are left.
    """
    found = np.zeros(1, dtype=np.int64)
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            found = np.concatenate([found, found + (1 << bit)])
    ends = (found ^ found >> 1) & mask & mask >> 1
    return found[1:][_sizes(mask.bit_length()).take(ends[1:]) <= most]


@lru_cache(maxsize=16)
def _sizes(num_axes: int) -> Codes:
    """The number of axes in each bit mask."""
    masks = np.arange(1 << num_axes)
    return (masks[:, None] >> np.arange(num_axes) & 1).sum(axis=1, dtype=np.int8)


def find(wanted: Ints, known: Ints) -> Ints:
    """The index in `known`, which ascends, of each of the wanted words; -1 if it is not there."""
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)


def sorted_edges(edges: Ints) -> Ints:
    """Sorted by source, kind, axes and target."""
    src, dst, kind, mask = edges
    columns = src, kind, mask, dst
    bits = [int(column.max(initial=0)).bit_length() for column in columns]
    key = np.zeros_like(src)  # one number of what orders edges: numbers are sorted faster than rows
    for column, width in zip(columns, bits, strict=True):
        key <<= width
        key |= column
    key.sort()
    found = np.empty_like(edges)
    for row, width in zip((1, 3, 2, 0), reversed(bits), strict=True):
        np.bitwise_and(key, (1 << width) - 1, out=found[row])
        key >>= width
    return found


def narrowed(numbers: Ints) -> NDArray[np.unsignedinteger[Any]]:
    """The numbers shifted to start at 0, in the smallest integer type, which sorts faster."""
    above = numbers - numbers.min(initial=0)
    return above.astype(np.min_scalar_type(int(above.max(initial=0))))


def _powers(num_axes: int, ndim: int) -> Ints:
    return (ndim + 2) ** np.arange(num_axes - 1, -1, -1, dtype=np.int64)


def _kind_table() -> Ints:
    """[source, target] -> kind, with every split written as 0 (negative codes wrap)."""
    table = np.full((3, 3), -1, dtype=np.int64)
    for source, target in itertools.product((-2, -1, 0), repeat=2):
        if source != target or source == 0:
            ends = Placement(source), Placement(1 if source == target else target)
            table[source, target] = COLLECTIVES.of_change(*ends)[0]
    return table


KIND_TABLE = _kind_table()
