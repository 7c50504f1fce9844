"""The table of one group: its strategies, and the seconds and bytes of each, edges left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...sbp.placement import Placement
from ...search.problem import Table
from .groups import CompositeSignature
from .storage_table import StoragePort, StorageTable
from .strategies import Assignments

Codes = NDArray[np.int8]
Times = tuple[Table, Table | None]  # seconds of an operator: of both passes, of the forward one


@dataclass(frozen=True)
class GroupTable:
    """All strategies of a group: `assign[k, axis]` numbers its composite signature there.

    times:   (both passes, the forward one) seconds of each operator that computes
    ports:   trained parameters that may be stored split, which then count neither in `sync_s` nor
             in `memory_bytes`; `stored_bytes` [strategies, storages] of all
    whole_s: of each port, seconds of the synchronisation of its gradient if it is stored whole
    storage: of all ports
    """

    composites: tuple[CompositeSignature, ...]
    assign: Assignments
    compute_s: Table
    inner_s: Table
    sync_s: Table
    memory_bytes: Table
    ports: tuple[StoragePort, ...] = ()
    stored_bytes: Table | None = None
    whole_s: tuple[Table, ...] = ()
    storage: StorageTable | None = None
    times: tuple[Times, ...] = ()

    @staticmethod
    def unpriced(composites: tuple[CompositeSignature, ...], assign: Assignments) -> GroupTable:
        """The strategies with seconds and bytes of zero."""
        nothing = np.zeros(len(assign))
        return GroupTable(composites, assign, nothing, nothing, nothing, nothing)

    def some(self, rows: NDArray[np.int64]) -> GroupTable:
        """The table of these strategies only, before storages are priced."""
        assert self.storage is None
        stored = None if self.stored_bytes is None else self.stored_bytes[rows]
        return GroupTable(
            self.composites,
            self.assign[rows],
            self.compute_s[rows],
            self.inner_s[rows],
            self.sync_s[rows],
            self.memory_bytes[rows],
            tuple(port.some(rows) for port in self.ports),
            stored,
            tuple(seconds[rows] for seconds in self.whole_s),
        )

    @property
    def least_bytes(self) -> Table:
        """[strategies] with the parameters stored as small as may be."""
        if self.stored_bytes is None:
            return self.memory_bytes
        return self.memory_bytes + self.stored_bytes.min(axis=1)

    def codes(self, label: Callable[[CompositeSignature], Placement]) -> Codes:
        """Placement codes [strategies, axes] of the tensor that `label` picks from a composite."""
        codes = np.array([label(c).code for c in self.composites], dtype=np.int8)
        return codes[self.assign]
