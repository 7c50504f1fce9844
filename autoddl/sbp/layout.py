"""Where a tensor's elements lie under an NdSbp: local shapes and slices.

A dim of n split over p devices is balanced: the first n mod p devices have one element more.
Several axes that split one dim nest, the earlier axis outermost, and each level is balanced:
10 over (S0, S0) on 2 x 2 is 3, 2, 3, 2, while 10 over S0 on 4 is 3, 3, 2, 2. Along an axis with
shares (`mesh.Axis`) a dim is cut by them, and must be a multiple of their sum; then "even" says
that the parts are just as large as the shares say.

This module is the only one that divides a tensor, or an operator's work, among devices; no other
module assumes that the parts are equal. For a single placement use `local_slices`, `local_shape`,
`shard_bytes` and `even_bytes`; for many placements at once, given as rows of label codes
(`Placement.code`), `num_parts`, `split_units` and the functions built on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .mesh import Axis, Mesh
from .placement import NdSbp, Placement

Shape = tuple[int, ...]
Codes = NDArray[np.int8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Global (logical) shape and dtype name of a tensor."""

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {self.dtype!r}; known: {', '.join(ITEM_BYTES)}")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"a shape has no negative sizes: {self.shape}")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        return self.numel * self.item_bytes

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def balanced_range(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """The `index`-th of `parts` balanced pieces of [start, stop)."""
    base, extra = divmod(stop - start, parts)
    low = start + index * base + min(index, extra)
    return low, low + base + (1 if index < extra else 0)


def piece_of(start: int, stop: int, axis: Axis, index: int) -> tuple[int, int]:
    """The piece of [start, stop) at coordinate `index` of an axis: balanced, or by its shares.

    Balanced, too, among those that have a share where these are equal.

    ValueError if the shares cannot divide it into whole elements.
    """
    shares = axis.shares or (1,) * axis.extent
    if len(set(shares) - {0}) < 2:
        low, high = balanced_range(
            start, stop, sum(map(bool, shares)), sum(map(bool, shares[:index]))
        )
        return low, high if shares[index] else low
    unit, rest = divmod(stop - start, axis.units)
    if rest:
        raise ValueError(
            f"{stop - start} elements cannot be divided {':'.join(map(str, axis.shares))}: they "
            f"are not a multiple of {axis.units}"
        )
    low = start + unit * sum(axis.shares[:index])
    return low, low + unit * axis.shares[index]


def local_slices(shape: Sequence[int], nd: NdSbp, mesh: Mesh, rank: int) -> tuple[slice, ...]:
    """The slices of the global tensor that `rank` holds (whole dims for B and P).

    Raises ValueError if the NdSbp does not fit the mesh or the tensor's rank.
    """
    check_fits(shape, nd, mesh)
    ranges = [(0, n) for n in shape]
    for placement, axis, coord in zip(nd, mesh.axes, mesh.coords(rank), strict=True):
        if placement.is_split:
            ranges[placement.dim] = piece_of(*ranges[placement.dim], axis, coord)
    return tuple(slice(low, high) for low, high in ranges)


def local_shape(shape: Sequence[int], nd: NdSbp, mesh: Mesh, rank: int) -> Shape:
    """Shape of the part that `rank` holds."""
    return tuple(s.stop - s.start for s in local_slices(shape, nd, mesh, rank))


def check_fits(shape: Sequence[int], nd: NdSbp, mesh: Mesh) -> None:
    """Raise ValueError if `nd` cannot place a tensor of `shape` on `mesh`."""
    if len(nd) != mesh.num_axes:
        raise ValueError(f"{nd} has {len(nd)} axes, the mesh {mesh} has {mesh.num_axes}")
    for axis, placement in enumerate(nd):
        if placement.is_split and placement.dim >= len(shape):
            raise ValueError(
                f"{nd} splits dim {placement.dim} on axis {axis}, "
                f"but the shape {tuple(shape)} has {len(shape)} dims"
            )


def is_even(shape: Sequence[int], nd: NdSbp, mesh: Mesh) -> bool:
    """True if every split dim divides evenly over its axes, so that all shards are equal.

    Along an axis with shares: just as large as these say.
    """
    if any(dim >= len(shape) for dim in nd.split_dims()):
        return False
    return all(shape[dim] % units_of_dim(nd, dim, mesh) == 0 for dim in nd.split_dims())


def is_chunk(shape: Shape, nd: NdSbp, mesh: Mesh, rank: int) -> bool:
    """Whether a device's part is what `torch.chunk`, axis by axis, would give it."""
    if is_even(shape, nd, mesh) and not mesh.shares:
        return True
    ranges = [range(n) for n in shape]
    for place, extent, coord in zip(nd, mesh.extents, mesh.coords(rank), strict=True):
        if place.is_split:
            size = -(-len(ranges[place.dim]) // extent)
            ranges[place.dim] = ranges[place.dim][coord * size : (coord + 1) * size]
    own = local_slices(shape, nd, mesh, rank)
    return [range(s.start, s.stop) for s in own] == ranges


def units_of_dim(placements: Iterable[Placement], dim: int, mesh: Mesh) -> int:
    """Of what `dim` must be a multiple to be split evenly: into so many parts, if all are equal."""
    split = (a for a, p in enumerate(placements) if p.is_split and p.dim == dim)
    return math.prod(mesh.units[a] for a in split)


@lru_cache(maxsize=10_000)
def shard_bytes(spec: TensorSpec, nd: NdSbp, mesh: Mesh) -> int:
    """Bytes of the largest part of a tensor."""
    return spec.item_bytes * math.prod(local_shape(spec.shape, nd, mesh, mesh.fullest))


@lru_cache(maxsize=10_000)
def num_shards(nd: NdSbp, mesh: Mesh) -> float:
    """A tensor's size divided by that of the largest part that a device holds."""
    return math.prod(mesh.parts[a] for a, placement in enumerate(nd) if placement.is_split)


def even_bytes(spec: TensorSpec, nd: NdSbp, mesh: Mesh) -> float:
    """Bytes of a tensor's largest part, where parts that do not divide evenly count as equal."""
    return spec.bytes / num_shards(nd, mesh)


# ---- many placements at once


def num_parts(divided: ArrayLike, parts: ArrayLike) -> Floats:
    """[...]: the number of parts made by the axes where `divided` [..., axes] is true.

    parts: of each axis [axes], or [..., axes] where the rows are of several meshes
    """
    return np.where(divided, np.asarray(parts, dtype=np.float64), 1.0).prod(axis=-1)


def even_bytes_of(spec: TensorSpec, codes: Codes, mesh: Mesh) -> Floats:
    """[n]: `even_bytes` under each row of codes [n, axes]."""
    return spec.bytes / num_parts(codes >= 0, mesh.parts)


def split_units(codes: Codes, ndim: int, mesh: Mesh) -> Ints:
    """[n, ndim]: `units_of_dim` of each dim under each row of codes [n, axes]."""
    found = np.ones((len(codes), ndim), dtype=np.int64)
    dims, each = np.arange(ndim, dtype=codes.dtype)[:, None], np.array(mesh.units)
    for units in set(mesh.units):
        own = codes[:, each == units]
        powers = units ** np.arange(own.shape[1] + 1)
        found *= powers.take((own[:, None] == dims).sum(axis=2))
    return found


def fullest_share(codes: Codes, mesh: Mesh) -> Floats | float:
    """[n]: of how many units the largest part consists under each row; 1 on an even mesh."""
    if not mesh.shares:
        return 1.0
    return np.where(codes[:, 0] >= 0, float(max(mesh.shares)), 1.0)


def largest_bytes(
    spec: TensorSpec, units: NDArray[np.signedinteger[Any]], fullest: Floats | float = 1.0
) -> tuple[Floats, Bools]:
    """Bytes of the largest shard under each row of `units` [n, ndim], and whether it is even.

    fullest: `fullest_share` of the rows
    The first device of nested balanced splits holds ceil(size / parts) of each dim.
    """
    shape = np.array(spec.shape, dtype=np.int64)
    local = -(-shape // units)
    of_unit = spec.item_bytes * local.prod(axis=1, dtype=np.float64)
    return of_unit * fullest, (local * units == shape).all(1)


def divides_evenly(shape: Sequence[int], units: NDArray[Any]) -> Bools:
    """[n]: whether each row of `units` [n, ndim] divides every dim."""
    return (np.array(shape, dtype=np.int64) % units == 0).all(axis=-1)


def repeated_parts(parts: ArrayLike, counts: Ints) -> NDArray[Any]:
    """[n]: the number of parts made by counts [n, classes] of axes, each class of so many parts."""
    return (np.asarray(parts) ** counts).prod(axis=-1)
