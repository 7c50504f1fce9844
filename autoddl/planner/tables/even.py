"""Which assignments of signatures to axes divide every tensor of a group evenly.

Of each dim the extents that split it have, prime by prime, no larger an exponent than the dim's
size. So only how often signatures that split it stand on axes of each extent counts, and a size
with as large an exponent as there are axes limits nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...sbp.mesh import Mesh

_Limit = tuple[bytes, tuple[int, ...]]


@dataclass(frozen=True)
class Even:
    """limits: a byte for each signature, whether it splits; on how many axes of each prime at most.

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
        axes = {prime: mesh.extents.count(prime) for prime in sorted(set(mesh.extents))}
        found = {
            key: tuple(_exponent(size, prime, count) for prime, count in axes.items())
            for key, size in sizes.items()
        }
        vacuous = tuple(axes.values())
        return Even(mesh, frozenset(item for item in found.items() if item[1] != vacuous))

    def binds(self, length: int) -> bool:
        """Whether it leaves out any assignment to the first `length` axes."""
        first = self.mesh.extents[:length]
        axes = [first.count(prime) for prime in sorted(set(self.mesh.extents))]
        return any(
            most < count
            for _, mosts in self.limits
            for most, count in zip(mosts, axes, strict=True)
        )

    def unlimited(self, symbols: Iterable[int]) -> tuple[int, ...]:
        """Those signatures that may stand on any number of axes."""
        limited = [np.frombuffer(which, dtype=bool) for which, _ in self.limits]
        return tuple(symbol for symbol in symbols if not any(which[symbol] for which in limited))

    def __call__(self, assign: NDArray[np.int16]) -> NDArray[np.bool_]:
        """Mask of the rows of `assign` [n, axes] (the first ones, if not all)."""
        mask = np.ones(len(assign), dtype=bool)
        if not self.binds(assign.shape[1]):
            return mask
        limits = sorted(self.limits)
        columns = np.array([np.frombuffer(which, dtype=np.int8) for which, _ in limits]).T
        extents = np.array(self.mesh.extents[: assign.shape[1]])
        for number, prime in enumerate(sorted(set(self.mesh.extents))):
            counts = np.zeros((len(limits), len(assign)), dtype=np.int8)
            for axis in np.flatnonzero(extents == prime):
                counts += columns.take(assign[:, axis], axis=0).T
            for count, (_, mosts) in zip(counts, limits, strict=True):
                mask &= count <= mosts[number]
        return mask


def _exponent(size: int, prime: int, most: int) -> int:
    """How often `prime` divides `size`, up to `most`."""
    count = 0
    while count < most and size % prime == 0:
        size //= prime
        count += 1
    return count
