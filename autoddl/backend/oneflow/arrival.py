"""Sees a message arrive without asking OneFlow, whose answer would queue behind the next transfer.

With one thread for everything OneFlow carries out the transfers that it has been asked for one
after the other, and what only waits for the first of them gets its turn after the last. But it
writes what comes straight into memory of NumPy's, the last element at last.
"""

from __future__ import annotations

import numpy as np
import oneflow as flow


class Arrival:
    """A message of `size` elements that is on its way into `tensor`."""

    def __init__(self, size: int, dtype: flow.dtype) -> None:
        kind = np.dtype(str(dtype).removeprefix("oneflow."))
        self._absent = kind.type(np.nan if kind.kind == "f" else np.iinfo(kind).min)
        self._memory = np.full(size, self._absent, dtype=kind)
        self.tensor = flow.from_numpy(self._memory)

    @property
    def is_there(self) -> bool:
        last = self._memory[-1]
        return not (np.isnan(last) or last == self._absent)
