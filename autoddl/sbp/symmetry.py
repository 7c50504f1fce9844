"""Symmetries of path prices: tensor dims of equal divisibility, and reversed paths.

- The bytes of a shard do not depend on which dim is split, as long as the split is even. Two dims
  that the same numbers of parts divide may therefore be exchanged in source and target.
- A path read backwards with Partial and Broadcast exchanged is a path as well: all-gather becomes
  reduce-scatter and slicing becomes padding (`to_partial`), and vice versa, while all-reduce and
  all-to-all stay. If all-gather and reduce-scatter have one price, both paths cost the same.

So distance(s -> t) = distance(rename(s) -> rename(t)) = distance(dual(t) -> dual(s)).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .layout import Codes, Shape
from .mesh import Mesh

Names = NDArray[np.int8]


def dual(codes: Codes) -> Codes:
    """The states with Partial and Broadcast exchanged."""
    return np.where(codes < 0, np.int8(-3) - codes, codes)


def divisibility(shape: Shape, mesh: Mesh) -> tuple[tuple[bool, ...], ...]:
    """For each dim, which of the numbers of parts that the mesh can make divide it evenly."""
    parts = {1}
    for extent in mesh.extents:
        parts |= {n * extent for n in parts}
    numbers = sorted(parts)
    return tuple(tuple(size % n == 0 for n in numbers) for size in shape)


def alike_dims(shape: Shape, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The classes of two or more dims that exactly the same numbers of parts divide."""
    classes: dict[tuple[bool, ...], list[int]] = {}
    for dim, divides in enumerate(divisibility(shape, mesh)):
        classes.setdefault(divides, []).append(dim)
    return tuple(tuple(dims) for dims in classes.values() if len(dims) > 1)


def first_names(codes: Codes, ndim: int, alike: tuple[tuple[int, ...], ...]) -> Names:
    """[n, ndim]: for each state, new names of the dims in the order of their first axis.

    Within each class of `alike` dims, the dim that is split by the earliest axis gets the first
    name.
    """
    held = codes[:, :, None] == np.arange(ndim, dtype=np.int8)
    last = codes.shape[1]
    first = np.where(held, np.arange(last)[:, None], last).min(axis=1, initial=last)
    return names_by_rank(first, ndim, alike)


def names_by_rank(rank: NDArray[np.int64], ndim: int, alike: tuple[tuple[int, ...], ...]) -> Names:
    """[n, ndim]: new names of the dims, ascending with `rank` [n, ndim] within each class."""
    names = np.tile(np.arange(ndim, dtype=np.int8), (len(rank), 1))
    for dims in alike:
        order = np.argsort(rank[:, list(dims)], axis=1, kind="stable")
        np.put_along_axis(names, np.array(dims)[order], np.array(dims, dtype=np.int8)[None], axis=1)
    return names


def rename(codes: Codes, names: Names) -> Codes:
    """Each state with its dims renamed; `names` [n, ndim] or [ndim]."""
    if not names.shape[-1]:
        return codes
    if names.ndim == 1:
        return np.where(codes < 0, codes, names[np.maximum(codes, 0)])
    return np.where(codes < 0, codes, np.take_along_axis(names, np.maximum(codes, 0), axis=1))
