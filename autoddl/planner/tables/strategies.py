"""The strategies of a group on a mesh: assignments of one-axis signatures to the atomic axes.

On a small mesh these are all assignments. With many axes that number (signatures ** axes) is out of
reach and needless: axes of one extent and link class are interchangeable up to the order in which
they nest. There a run of such axes is cut into few blocks of one signature each (AutoDDL's topology
tuples, in every order and with a signature in more than one block where the nesting needs it), and
if that is still too many, into blocks of few distinct signatures with the batch outermost; last,
all axes together are cut so. `assignments` takes the first of these spaces that is small enough.
Optimality is proven in the space that it took.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...sbp.edges import row_numbers
from ...sbp.mesh import Mesh, prime_factors

_Limit = tuple[bytes, tuple[int, ...]]


@dataclass(frozen=True)
class Even:
    """Which assignments of signatures to axes divide every tensor of a group evenly.

    Of each dim the units (`Axis.units`) of the axes that split it have, prime by prime, no larger
    an exponent than the dim's size. So only how often each prime is in the units of axes counts
    where signatures stand that split it, and a size with as large an exponent as all axes together
    limits nothing.

    limits: a byte for each signature, whether it splits; how often each prime at most

    Equal for groups whose tensors divide alike.
    """

    mesh: Mesh
    limits: frozenset[_Limit]

    @staticmethod
    def of(mesh: Mesh, splits: Iterable[tuple[NDArray[np.bool_], int]]) -> Even:
        """splits: for each dim, the signatures that split it, and its size."""
        sizes: dict[bytes, int] = {}
        for which, size in splits:
            if which.any():
                key = which.tobytes()
                sizes[key] = math.gcd(sizes.get(key, size), size)
        in_axes = _exponents(mesh)
        vacuous = tuple(map(sum, in_axes.values()))
        found = {
            key: tuple(_exponent(size, *most) for most in zip(in_axes, vacuous, strict=True))
            for key, size in sizes.items()
        }
        return Even(mesh, frozenset(item for item in found.items() if item[1] != vacuous))

    def binds(self, length: int) -> bool:
        """Whether it leaves out any assignment to the first `length` axes."""
        counts = [sum(each[:length]) for each in _exponents(self.mesh).values()]
        return any(
            most < count
            for _, mosts in self.limits
            for most, count in zip(mosts, counts, strict=True)
        )

    def unlimited(self, symbols: Iterable[int]) -> tuple[int, ...]:
        """The signatures that any number of axes may have."""
        limited = [np.frombuffer(which, dtype=bool) for which, _ in self.limits]
        return tuple(symbol for symbol in symbols if not any(which[symbol] for which in limited))

    def __call__(self, assign: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Mask of the rows of `assign` [n, axes] (the first ones, if not all)."""
        mask = np.ones(len(assign), dtype=bool)
        if not self.binds(assign.shape[1]):
            return mask
        limits = sorted(self.limits)
        columns = np.array([np.frombuffer(which, dtype=np.int8) for which, _ in limits]).T
        for number, in_axes in enumerate(_exponents(self.mesh).values()):
            counts = np.zeros((len(limits), len(assign)), dtype=np.int8)
            for axis in np.flatnonzero(in_axes[: assign.shape[1]]):
                counts += np.int8(in_axes[axis]) * columns.take(assign[:, axis], axis=0).T
            for count, (_, mosts) in zip(counts, limits, strict=True):
                mask &= count <= mosts[number]
        return mask


@lru_cache(maxsize=16)
def _exponents(mesh: Mesh) -> dict[int, tuple[int, ...]]:
    """How often each prime, ascending, is in the units of each axis."""
    primes = sorted({prime for units in mesh.units for prime in prime_factors(units)})
    return {p: tuple(prime_factors(units).count(p) for units in mesh.units) for p in primes}


def _exponent(size: int, prime: int, most: int) -> int:
    """How often `prime` divides `size`, up to `most`."""
    count = 0
    while count < most and size % prime == 0:
        size //= prime
        count += 1
    return count


Assignments = NDArray[np.int16]
Feasible = Callable[[Assignments], NDArray[np.bool_]]

# Of a group; half and twice as many gave the same plans of VGG13 on 64, GPT-36B on 256, ResNet-50
# on 2x8 and GPT-0.35B on 2x16 devices; with twice the cap ResNet-50 took 1.4 times as long.
DEFAULT_CAP = 450
# Half and twice as many gave the same plans of EfficientNet-B0 and HRNet on 2x8, in times within
# 8 %.
_MAX_GENERATED = 60_000
_CHUNK_ROWS = 4_000  # generated at once


@dataclass(frozen=True)
class Restriction:
    """A space of block sequences on one run of axes.

    distinct: signatures in a sequence at most; blocks: blocks at most; leading_first: the signature
    that splits the batch stands only in the first block; across: all axes count as one run, so that
    a block may reach over different extents and links
    """

    distinct: int
    blocks: int
    leading_first: bool
    across: bool = False


RESTRICTIONS = (
    Restriction(9, 9, False),
    Restriction(4, 4, False),
    Restriction(4, 4, True),
    Restriction(3, 4, True),
    Restriction(4, 3, True),
    Restriction(3, 3, True),
    Restriction(2, 3, True),
    Restriction(2, 2, False),
    Restriction(2, 2, True),
    Restriction(3, 3, True, across=True),
    Restriction(2, 3, True, across=True),
    Restriction(2, 2, False, across=True),
    Restriction(1, 1, False),
)


@lru_cache(maxsize=16)
def runs(mesh: Mesh) -> tuple[int, ...]:
    """Lengths of the runs of neighbouring axes of equal extent and link class."""
    return tuple(len(list(group)) for _, group in itertools.groupby(mesh.axes))


def count_block_sequences(symbols: int, length: int, restriction: Restriction) -> int:
    """An upper bound on the number of `block_sequences`."""
    return sum(
        symbols * (symbols - 1) ** (blocks - 1) * math.comb(length - 1, blocks - 1)
        for blocks in range(1, min(length, restriction.blocks) + 1)
    )


@lru_cache(maxsize=512)
def block_sequences(
    symbols: tuple[int, ...], leading: frozenset[int], length: int, restriction: Restriction
) -> Assignments:
    """Sequences of `length` symbols that keep to the restriction, as ascending rows."""
    levels = [np.zeros((0, length), dtype=np.int16)]
    for blocks, orders in enumerate(_orders(symbols, leading, length, restriction), start=1):
        for cuts in itertools.combinations(range(1, length), blocks - 1):
            levels.append(np.repeat(orders, np.diff((0, *cuts, length)), axis=1))
    rows = np.concatenate(levels)
    rows = rows[np.argsort(row_numbers(rows))]
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=512)
def num_sequences(symbols: int, leading: int, length: int, restriction: Restriction) -> int:
    """How many `block_sequences` there are of so many symbols, some of which split the batch."""
    distinct, total = restriction.distinct, 0
    for blocks in range(1, min(length, restriction.blocks) + 1):
        if restriction.leading_first:
            others = symbols - leading
            orders = _num_orders(others, blocks, distinct)
            orders += leading * _num_orders(others, blocks - 1, distinct - 1)
        else:
            orders = _num_orders(symbols, blocks, distinct)
        total += orders * math.comb(length - 1, blocks - 1)
    return total


def _num_orders(symbols: int, blocks: int, distinct: int) -> int:
    """Sequences in which neighbours differ, of at most so many distinct symbols.

    Of those of m symbols, all that have each of them remain by inclusion and exclusion.
    """
    if blocks == 0:
        return 1
    return sum(
        math.comb(symbols, m)
        * sum((-1) ** (m - k) * math.comb(m, k) * k * (k - 1) ** (blocks - 1) for k in range(m + 1))
        for m in range(1, min(distinct, blocks) + 1)
    )


@lru_cache(maxsize=512)
def _orders(
    symbols: tuple[int, ...], leading: frozenset[int], length: int, restriction: Restriction
) -> tuple[Assignments, ...]:
    """The symbols of 1, 2, ... blocks."""
    levels = [np.array(symbols, dtype=np.int16)[:, None]]
    while len(levels) < min(length, restriction.blocks):
        levels.append(_with_one_more(levels[-1], symbols, leading, restriction))
    return tuple(levels)


def _with_one_more(
    orders: Assignments, symbols: tuple[int, ...], leading: frozenset[int], restriction: Restriction
) -> Assignments:
    """Each order of blocks with each symbol after it that the restriction allows."""
    last = np.tile(np.array(symbols, dtype=np.int16), len(orders))
    longer = np.column_stack([np.repeat(orders, len(symbols), axis=0), last])
    allowed = longer[:, -1] != longer[:, -2]
    if restriction.leading_first:
        allowed &= ~np.isin(last, sorted(leading))
    ordered = np.sort(longer, axis=1)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    return longer[allowed & (distinct <= restriction.distinct)]


def assignments(
    num_symbols: int,
    leading: frozenset[int],
    dispensable: frozenset[int],
    mesh: Mesh,
    feasible: Feasible,
    cap: int = DEFAULT_CAP,
    copies: frozenset[int] = frozenset(),
) -> Assignments:
    """int16 array [strategies, axes] of signature numbers, in lexicographic order.

    leading:     signatures that split the batch (they nest outermost in restricted spaces)
    dispensable: signatures left out of restricted spaces if anything else remains
    feasible:    mask of the assignments whose splits divide the tensors evenly; of an `Even` the
                 result is kept, as many groups divide alike
    copies:      signatures that split nothing. Where the space would lose them, the last one stays
                 beside the first two others: without, plans of ResNet-50, ViT-S and HRNet with a
                 batch of 32 take 3.0, 2.4 and 1.5 times as long on 8x8 devices
    """
    find = _even_assignments if isinstance(feasible, Even) else _assignments
    found = find(num_symbols, leading, dispensable, mesh, feasible, cap, copies)
    found.flags.writeable = False
    return found


def _assignments(
    num_symbols: int,
    leading: frozenset[int],
    dispensable: frozenset[int],
    mesh: Mesh,
    feasible: Feasible,
    cap: int,
    copies: frozenset[int],
) -> Assignments:
    axes = mesh.num_axes
    if axes == 0:
        return np.zeros((1, 0), dtype=np.int16)
    everything = tuple(range(num_symbols))
    if num_symbols**axes <= _MAX_GENERATED:
        grid = np.indices((num_symbols,) * axes, dtype=np.int16).reshape(axes, -1).T
        grid = grid[feasible(grid)]
        if len(grid) <= cap:
            return grid
    needed = tuple(s for s in everything if s not in dispensable) or everything

    def spaces(most: float) -> Iterator[Assignments]:
        """The assignments of each restricted space that has some, but at most so many."""
        for restriction in RESTRICTIONS:
            # Rules list their best signatures first; before the blocks lose variety, the rest goes.
            short = restriction == RESTRICTIONS[4] or restriction.across
            fewer = (needed[:4],) if short else ()
            for symbols in (everything, needed, *fewer):
                found = _restricted(symbols, leading, mesh, feasible, restriction, most)
                if restriction.across and found is not None:
                    plain = _restricted(everything, leading, mesh, feasible, RESTRICTIONS[-1])
                    found = found if plain is None else _distinct(np.vstack([found, plain]))
                if found is None or not 0 < len(found) <= most:
                    continue
                if not copies.issubset(symbols):  # a few more than `most` are no harm
                    few = (*needed[:2], max(copies))
                    more = _restricted(few, leading, mesh, feasible, restriction)
                    found = found if more is None else _distinct(np.vstack([found, more]))
                yield found

    fits = next(spaces(cap), None)
    if fits is not None:
        return fits
    return min(spaces(math.inf), key=len, default=np.zeros((0, axes), dtype=np.int16))


_even_assignments = lru_cache(maxsize=512)(_assignments)


def _distinct(rows: Assignments) -> Assignments:
    """The distinct rows, ascending."""
    return rows[np.unique(row_numbers(rows), return_index=True)[1]]


def _restricted(
    symbols: tuple[int, ...],
    leading: frozenset[int],
    mesh: Mesh,
    feasible: Feasible,
    restriction: Restriction,
    most: float = math.inf,
) -> Assignments | None:
    """The product of the runs' block sequences; None if too large to write down, or over `most`."""
    partial = np.zeros((1, 0), dtype=np.int16)
    lengths = (mesh.num_axes,) if restriction.across else runs(mesh)
    kinds = symbols, leading
    counts = len(symbols), len(leading.intersection(symbols))
    if isinstance(feasible, Even):  # those of signatures without limits are all there
        free = feasible.unlimited(symbols)
        few = len(free), len(leading.intersection(free))
        if math.prod(num_sequences(*few, length, restriction) for length in lengths) > most:
            return None
    for number, length in enumerate(lengths):
        if count_block_sequences(len(symbols), length, restriction) > _MAX_GENERATED:
            return None
        size = len(partial) * num_sequences(*counts, length, restriction)
        if size > _MAX_GENERATED:
            return None
        all_divide = isinstance(feasible, Even) and not feasible.binds(partial.shape[1] + length)
        if all_divide and number + 1 < len(lengths):
            after = num_sequences(*counts, lengths[number + 1], restriction)
            if size * after > _MAX_GENERATED:
                return None
        last = number + 1 == len(lengths)
        if all_divide and last and size > most:
            return None
        sequences = block_sequences(*kinds, length, restriction)
        found: list[Assignments] = []
        step = max(1, _CHUNK_ROWS // len(sequences))
        for first in range(0, len(partial), step):
            before = partial[first : first + step]
            rows = np.hstack(
                [
                    np.repeat(before, len(sequences), axis=0),
                    np.tile(sequences, (len(before), 1)),
                ]
            )
            found.append(rows if all_divide else rows[feasible(rows)])
            if last and sum(map(len, found)) > most:
                return None
        none = np.zeros((0, partial.shape[1] + length), dtype=np.int16)
        partial = np.concatenate([none, *found])
    return partial
