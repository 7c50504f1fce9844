"""How far a cost may be from the least: the gap to a lower bound."""

from __future__ import annotations

# Relative error that single-precision tables of a search leave; nearer costs count as equal.
ROUNDING = 1e-6


def relative_gap(cost: float, lower_bound: float) -> float:
    """cost / lower_bound - 1, exactly 0 where they differ by rounding only; inf if unbounded."""
    if cost <= lower_bound + 4 * ROUNDING * abs(cost):
        return 0.0
    return cost / lower_bound - 1 if lower_bound > 0 else float("inf")
