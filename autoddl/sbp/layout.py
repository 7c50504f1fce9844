"""Where a tensor's elements lie under an NdSbp: local shapes and slices.

A dim of n split over p devices is balanced: the first n mod p devices have one element more.
Several axes that split one dim nest, the earlier axis outermost, and each level is balanced:
10 over (S0, S0) on 2 x 2 is 3, 2, 3, 2, while 10 over S0 on 4 is 3, 3, 2, 2.

This module is the only one that divides a tensor, or an operator's work, among devices; no other
module assumes that the parts are equal. For a single placement use `local_slices`, `local_shape`,
`shard_bytes` and `even_bytes`; for many placements at once, given as rows of label codes
(`Placement.code`), `num_parts`, `split_parts` and the functions built on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .mesh import Mesh
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


def local_slices(shape: Sequence[int], nd: NdSbp, mesh: Mesh, rank: int) -> tuple[slice, ...]:
    """The slices of the global tensor that `rank` holds (whole dims for B and P).

    Raises ValueError if the NdSbp does not fit the mesh or the tensor's rank.
    """
    check_fits(shape, nd, mesh)
    ranges = [(0, n) for n in shape]
    for placement, extent, coord in zip(nd, mesh.extents, mesh.coords(rank), strict=True):
        if placement.is_split:
            low, high = ranges[placement.dim]
            ranges[placement.dim] = balanced_range(low, high, extent, coord)
    return tuple(slice(low, high) for low, high in ranges)


def local_shape(shape: Sequence[int], nd: NdSbp, mesh: Mesh, rank: int = 0) -> Shape:
    """Shape of the part that `rank` holds. Rank 0 holds the largest."""
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
    """True if every split dim divides evenly over its axes, so that all shards are equal."""
    if any(dim >= len(shape) for dim in nd.split_dims()):
        return False
    return all(shape[dim] % parts_of_dim(nd, dim, mesh) == 0 for dim in nd.split_dims())


def parts_of_dim(placements: Iterable[Placement], dim: int, mesh: Mesh) -> int:
    """Into how many parts the placements on the mesh's axes split `dim`."""
    return mesh.extent(a for a, p in enumerate(placements) if p.is_split and p.dim == dim)


def shard_bytes(spec: TensorSpec, nd: NdSbp, mesh: Mesh, rank: int = 0) -> int:
    """Bytes of the part that `rank` holds. Rank 0 holds the largest."""
    return spec.item_bytes * math.prod(local_shape(spec.shape, nd, mesh, rank))


@lru_cache(maxsize=10_000)
def num_shards(nd: NdSbp, mesh: Mesh) -> int:
    """The number of distinct parts of a tensor that the devices hold."""
    return mesh.extent(a for a, placement in enumerate(nd) if placement.is_split)


def even_bytes(spec: TensorSpec, nd: NdSbp, mesh: Mesh) -> float:
    """Bytes of a tensor on one device if all parts are taken as equal."""
    return spec.bytes / num_shards(nd, mesh)


# ---- many placements at once


def num_parts(divided: ArrayLike, extents: ArrayLike) -> Floats:
    """[...]: the number of parts made by the axes where `divided` [..., axes] is true.

    extents: [axes], or [..., axes] where the rows are of several meshes
    """
    return np.where(divided, np.asarray(extents, dtype=np.float64), 1.0).prod(axis=-1)


def even_bytes_of(spec: TensorSpec, codes: Codes, mesh: Mesh) -> Floats:
    """[n]: `even_bytes` under each row of codes [n, axes]."""
    return spec.bytes / num_parts(codes >= 0, mesh.extents)


def split_parts(codes: Codes, ndim: int, mesh: Mesh) -> Ints:
    """[n, ndim]: the product of the extents of the axes that split each dim."""
    parts = np.ones((len(codes), ndim), dtype=np.int64)
    for axis, extent in enumerate(mesh.extents):
        by_label = np.ones((ndim + 2, ndim), dtype=np.int64)
        by_label[range(2, ndim + 2), range(ndim)] = extent
        parts *= by_label.take(codes[:, axis] + np.int8(2), axis=0)
    return parts


def largest_bytes(spec: TensorSpec, parts: NDArray[np.signedinteger[Any]]) -> tuple[Floats, Bools]:
    """Bytes of the largest shard under each row of `parts` [n, ndim], and whether it is even.

    The first device of nested balanced splits holds ceil(size / parts) of each dim.
    """
    shape = np.array(spec.shape, dtype=np.int64)
    local = -(-shape // parts)
    return spec.item_bytes * local.prod(axis=1, dtype=np.float64), (local * parts == shape).all(1)


def divides_evenly(shape: Sequence[int], parts: NDArray[Any]) -> Bools:
    """[n]: whether each row of `parts` [n, ndim] divides every dim."""
    return (np.array(shape, dtype=np.int64) % parts == 0).all(axis=-1)


def repeated_parts(extents: ArrayLike, counts: Ints) -> NDArray[Any]:
    """[n]: the number of parts made by counts [n, classes] of axes, each class of one extent."""
    return (np.asarray(extents) ** counts).prod(axis=-1)
