"""A line for each measured group shape, beside the links' alpha and beta.

For one collective in groups of one shape the line (latency, slope) minimises

    sum rho(ln((latency + n slope) / measured))

over its message sizes n, neither number negative, rho as in `fit`. `fit_lines` computes all of
them. Shapes with fewer than `LEAST_SIZES` messages have no line, nor have groups that leave devices
of their hosts idle, which no plan contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from ...cluster.link import GroupLine
from ...runtime.measure.schedule import Point, Shape
from .fit import KNEE, Residual

# A line has two numbers, latency and slope: with fewer message sizes hardly anything would be left
# by which to tell a measurement that is far off.
LEAST_SIZES = 4


def fit_lines(medians: Mapping[Point, float]) -> tuple[GroupLine, ...]:
    """The lines behind point -> median seconds, in a fixed order."""
    most = max((p.shape.groups * p.shape.gpus for p in medians), default=0)
    found: dict[tuple[str, Shape], list[tuple[int, float]]] = {}
    for point, seconds in medians.items():
        if point.kind != "send" and point.shape.groups * point.shape.gpus == most:
            found.setdefault((point.kind, point.shape), []).append((point.bytes, seconds))
    return tuple(
        _line(kind, shape, sorted(points))
        for (kind, shape), points in sorted(found.items())
        if len({size for size, _ in points}) >= LEAST_SIZES
    )


def lines_errors(residuals: Sequence[Residual], lines: Sequence[GroupLine]) -> dict[str, float]:
    """Collective -> median of |line / measured - 1| over the measured points that have a line."""
    by_shape = {(line.kind, Shape(line.nodes, line.gpus, line.groups)): line for line in lines}
    errors: dict[str, list[float]] = {}
    for residual in residuals:
        point = residual.point
        line = by_shape.get((point.kind, point.shape))
        if line is not None:
            seconds = line.latency_s + line.s_per_byte * point.bytes
            errors.setdefault(point.kind, []).append(abs(seconds / residual.measured_s - 1))
    return {kind: float(np.median(found)) for kind, found in errors.items()}


def _line(kind: str, shape: Shape, points: list[tuple[int, float]]) -> GroupLine:
    sizes, measured = np.array(points, dtype=np.float64).T
    start = np.array([measured[0], max(measured[-1] - measured[0], measured[0]) / sizes[-1]])
    found = least_squares(
        lambda x: np.log((start[0] * x[0] + start[1] * x[1] * sizes) / measured),
        np.ones(2),
        bounds=(1e-9, np.inf),
        loss="soft_l1",
        f_scale=KNEE,
    )
    latency, slope = (float(f"{v:.6g}") for v in found.x * start)
    return GroupLine(kind, shape.nodes, shape.gpus, shape.groups, latency, slope)
