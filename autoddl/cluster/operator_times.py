"""Measured seconds of an operator on a device.

A single arithmetic rate and a single memory bandwidth describe matrix products on a large device
well. Other operators may be far slower: a convolution or a broadcast on a CPU may run at a tenth of
those rates. `autoddl calibrate --model` therefore times the operators of a model, forward and
backward, at several batch sizes; `cost.operators` decides which measurement belongs to an operator.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from .fields import checked_number

# (work, forward seconds, backward seconds)
Point = tuple[float, float, float]


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

    def to_json(self) -> list[list[float]]:
        """A JSON list; `from_json` inverts it."""
        return [list(point) for point in self.points]

    @staticmethod
    def from_json(data: Any, where: str) -> OperatorTimes:
        """Read the list that `to_json` wrote; a ValueError names the point that is wrong."""
        points = points_of(data, where)
        try:
            return OperatorTimes(points)
        except ValueError as error:
            raise ValueError(f"field {where!r}: {error}") from None


def points_of(data: Any, where: str) -> tuple[Point, ...]:
    """Read a JSON list of [work, forward seconds, backward seconds]; ValueError says what fails."""
    if not isinstance(data, list | tuple) or not data:
        raise ValueError(f"field {where!r} must be a list of points, one at least")
    points: list[Point] = []
    for index, point in enumerate(data):
        path = f"{where}[{index}]"
        if not isinstance(point, list | tuple) or len(point) != 3:
            raise ValueError(f"field {path!r} must be [work, forward seconds, backward seconds]")
        work, forward_s, backward_s = point
        points.append(
            (
                checked_number(work, f"{path}[0]"),
                checked_number(forward_s, f"{path}[1]"),
                checked_number(backward_s, f"{path}[2]", zero=True),
            )
        )
    return tuple(points)
