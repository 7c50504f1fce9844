"""Offsets for tensors with lifetimes, as OneFlow's compiler chooses them: largest first.

Each tensor, from the largest to the smallest and of equal ones the earliest first, goes to the
lowest offset at which nothing is in its way while it lives. The whole can be more than the largest
sum of what lives at once: that is fragmentation. `packed_bytes` gives the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .....cost.tape import Lifetime


def packed_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes that hold all tensors at fixed offsets."""
    order = sorted((item for item in lifetimes if item[0]), key=lambda item: (-item[0], item[1]))
    if not order:
        return 0
    size, first, last = np.array(order, dtype=np.int64).T
    offset = np.zeros(len(order), dtype=np.int64)
    for number in range(1, len(order)):
        meets = (first[:number] <= last[number]) & (last[:number] >= first[number])
        starts = offset[:number][meets]
        by_start = np.argsort(starts, kind="stable")
        starts = starts[by_start]
        ends = np.maximum.accumulate(starts + size[:number][meets][by_start])
        # gaps lie before each start, after all that began earlier
        gaps = np.concatenate(([0], ends))
        fits = np.flatnonzero(gaps[:-1] + size[number] <= starts)
        offset[number] = gaps[fits[0]] if len(fits) else gaps[-1]
    return int((offset + size).max())
