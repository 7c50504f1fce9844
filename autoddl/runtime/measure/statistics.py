"""The median of repeated timings and its confidence interval, for any distribution.

Of n sorted samples, the interval from the k-th smallest to the k-th largest contains the median of
the distribution with probability 1 - 2 P(Bin(n, 1/2) < k). `median_interval` takes the narrowest
one that reaches the confidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """(low, high) that contains the median with at least `confidence`; None for too few samples."""
    ordered = sorted(samples)
    rank = _order_rank(len(ordered), confidence)
    return None if rank == 0 else (ordered[rank - 1], ordered[-rank])


def half_interval(samples: Sequence[float], confidence: float) -> float | None:
    """Half the interval by the median; None for too few samples."""
    interval = median_interval(samples, confidence)
    if interval is None:
        return None
    low, high = interval
    return (high - low) / 2 / statistics.median(samples)


def least_samples(confidence: float) -> int:
    """The fewest samples for which an interval of this confidence exists."""
    return max(1, math.ceil(1 - math.log2(1 - confidence)))


def _order_rank(count: int, confidence: float) -> int:
    """The largest k whose interval has the confidence; 0 if none has."""
    below, rank = 0, 0
    for k in range(1, (count + 1) // 2 + 1):
        below += math.comb(count, k - 1)
        if 2 * below > (1 - confidence) * 2**count:
            break
        rank = k
    return rank
