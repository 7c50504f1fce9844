"""Redistribution: NdSbp -> NdSbp as the cheapest path of collectives along mesh axes. (contract only)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

StepKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "to_partial"
]
PriceFn = Callable[[StepKind, tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """One collective (or free local step) along `axes`: `source` label -> `target` label."""

    kind: StepKind
    axes: tuple[int, ...]
    source: str
    target: str
