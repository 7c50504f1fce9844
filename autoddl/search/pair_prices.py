"""Seconds of the cheapest path for every pair of placements of two tables, computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sbp.layout import TensorSpec
from ..sbp.mesh import Mesh
from ..sbp.redistribute import PathTable, PriceFn
from .problem import Table


@dataclass
class PairPrices:
    """Path prices on one mesh, remembered by tensor and placements."""

    mesh: Mesh
    price: PriceFn
    _memo: dict[Hashable, Table] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.paths = PathTable(self.mesh, self.price)

    def seconds(
        self, spec: TensorSpec, sources: NDArray[np.int8], targets: NDArray[np.int8]
    ) -> Table:
        """[n, m] seconds from each row of `sources` [n, axes] to each of `targets` [m, axes]."""
        if self.mesh.num_axes == 0:
            return np.zeros((len(sources), len(targets)))
        first, from_first = np.unique(sources, axis=0, return_inverse=True)
        second, from_second = np.unique(targets, axis=0, return_inverse=True)
        key = (spec, first.tobytes(), second.tobytes())
        if key not in self._memo:
            self._memo[key] = self.paths.seconds(spec, first, second)
        return self._memo[key][from_first.ravel()][:, from_second.ravel()]
