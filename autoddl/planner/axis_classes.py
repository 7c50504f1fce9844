"""Strategies that differ only in the order of axes of one extent and link class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..search.problem import Table

Codes = NDArray[np.signedinteger[Any]]
_ALTERNATIVES = 2  # classes of each table that stay, so that there is another one to show


@dataclass(frozen=True)
class AxisClasses:
    """first: a strategy of each class; of: the class of each strategy."""

    first: NDArray[np.int64]
    of: NDArray[np.int64]

    @staticmethod
    def of_rows(assign: Codes, axes: Sequence[tuple[int, ...]]) -> AxisClasses:
        """axes: those that are interchangeable."""
        rows = np.ascontiguousarray(counted(assign, axes) + 1, dtype=np.uint8)
        keys = rows.view(f"S{rows.shape[1]}").ravel()  # no byte of them is zero
        _, first, of = np.unique(keys, return_index=True, return_inverse=True)
        return AxisClasses(first, of)

    def members(
        self, scores: Table, ceiling: float, at_least: int = _ALTERNATIVES
    ) -> NDArray[np.int64]:
        """The strategies of the classes that score no more, and of the best ones anyway."""
        stays = scores <= ceiling
        stays[np.argsort(scores, kind="stable")[:at_least]] = True
        return np.flatnonzero(stays[self.of])


def counted(codes: Codes, axes: Sequence[tuple[int, ...]]) -> Codes:
    """Equal for rows that have each code equally often on interchangeable axes."""
    return np.hstack([np.sort(codes[:, list(own)], axis=1) for own in axes])
