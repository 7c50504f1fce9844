"""Measured seconds of an operator on a device.

A single arithmetic rate and a single memory bandwidth describe matrix products on a large device
well. Other operators may be far slower: a convolution or a broadcast on a CPU may run at a tenth of
those rates. `autoddl calibrate --model` therefore times the operators of a model, forward and
backward, at several batch sizes; `cost.operators` decides which measurement belongs to an operator.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

from .._files import NotNegative, Positive, Stored

# (work, forward seconds, backward seconds)
Point = tuple[Positive, Positive, NotNegative]


@dataclass(frozen=True)
class OperatorTimes:
    """Measured points in ascending order of work (`cost.operators.work`); seconds never fall."""

    points: tuple[Point, ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("an operator needs one measured point at least")
        for (a, *before), (b, *after) in itertools.pairwise(self.points):
            if b <= a or any(y < x for x, y in zip(before, after, strict=True)):
                raise ValueError(
                    f"work must ascend and seconds must not fall, got {[b, *after]} after "
                    f"{[a, *before]}"
                )


# In a file as the list of its points
StoredTimes = Annotated[
    OperatorTimes, Stored(tuple[Point, ...], OperatorTimes, attrgetter("points"))
]
