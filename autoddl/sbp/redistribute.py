"""Redistribution: NdSbp -> NdSbp as the cheapest path of collectives along mesh axes. (contract only)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .placement import NdSbp, Placement

StepKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "to_partial"
]
PriceFn = Callable[[StepKind, tuple[int, ...]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or one free local step, in the groups along `axes`.

    The axes carry `source` before and `target` after it:
    all_gather S -> B, reduce_scatter P -> S, all_reduce P -> B, all_to_all S -> S', slice B -> S
    (local), to_partial B -> P or S -> P (local: the first device keeps, or pads with zeros).
    """

    kind: StepKind
    axes: tuple[int, ...]
    source: Placement
    target: Placement

    def apply(self, nd: NdSbp) -> NdSbp:
        """The placement after the step."""
        assert all(nd[a] == self.source for a in self.axes), f"{self} does not start at {nd}"
        return nd.replace(self.axes, self.target)

    def __str__(self) -> str:
        return f"{self.kind}[{','.join(map(str, self.axes))}] {self.source}->{self.target}"
