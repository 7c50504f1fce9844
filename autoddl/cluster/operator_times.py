"""What an operator takes on a device, where that was measured.

One rate for all arithmetic and one bandwidth for all memory describe matrix products on a large
device. Other operators may be far from them: a back end's convolution or broadcast on a CPU may run
at a tenth. `autoddl calibrate --model` times a model's own operators, forward and backward, at
several sizes of the batch; `cost.operators` says which operator is which.
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
    """Points by ascending work (`cost.operators.work`); more work never takes less time."""

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
        """ValueError names the point that is wrong."""
        points = points_of(data, where)
        try:
            return OperatorTimes(points)
        except ValueError as error:
            raise ValueError(f"field {where!r}: {error}") from None


def points_of(data: Any, where: str) -> tuple[Point, ...]:
    """A JSON list of [work, forward seconds, backward seconds]; ValueError says what is wrong."""
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
