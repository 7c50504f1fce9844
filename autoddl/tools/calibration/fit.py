"""The links' numbers from measured medians, by robust least squares (AutoDDL section 3.2).

With the work w of each point (`cost.collectives.work_of`: messages, bytes through the NIC and from
each device), the numbers of the two links are those that minimise

    sum rho(ln(predicted / measured))
    predicted = call + w.messages alpha + n max(w.nic beta_inter, w.device beta_intra)
                + n w.shuffled shuffle            (a transfer: its own latency instead of the first)

jointly over all collectives and group shapes, never negative. A residual is relative, so that small
messages, which are all latency, decide call and alpha, and large ones beta. rho is soft-L1 with a
knee at `KNEE`: a point that is far off counts little. Intervals are those of the linearised problem
(Jacobian, weights of rho, Student's t). Groups that leave some devices of their hosts idle have a
latency of their own in the fit, since starting a collective is quicker where fewer processes share
a host; they help to find beta. `fit_links` does all this; since no number is negative, the prices
are monotone in the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls
from scipy.stats import t as student

from ...cluster.link import Link
from ...cost.collectives import work_of
from ...runtime.measure.schedule import Point

Array = NDArray[np.float64]

KNEE = 0.1  # relative residual up to which the loss is quadratic, and linear beyond
# The reader is warned where the fit explains less of the measured times than this ...
BAD_R2 = 0.9
# ... or the median relative error of a collective is larger than this.
BAD_ERROR = 0.3
LEAST_BETA = 1e-15  # seconds per byte: no link is free
LEAST_LATENCY = 1e-12  # seconds: the solver stays a hair above its bounds; below this is zero
SHUFFLE = "device.shuffle_s_per_byte"
ALONE = "alone"  # the latency of groups that leave devices idle
COLUMNS = (
    *(f"{link}.{name}" for link in ("intra", "inter", ALONE)
      for name in ("call_s", "alpha_s", "transfer_s")),
    "intra.beta_s_per_byte", "inter.beta_s_per_byte", SHUFFLE,
)  # fmt: skip
INTRA_BETA = COLUMNS.index("intra.beta_s_per_byte")
INTER_BETA = COLUMNS.index("inter.beta_s_per_byte")


@dataclass(frozen=True)
class Residual:
    """A point, its measured and its predicted seconds."""

    point: Point
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Fit:
    """Fitted links and how well they describe the data; a link is None if nothing used it.

    intervals: dotted name -> (low, high);  errors: collective -> median |error|
    """

    intra: Link | None
    inter: Link | None
    shuffle_s_per_byte: float
    intervals: Mapping[str, tuple[float, float]]
    r2: float
    residuals: tuple[Residual, ...]
    errors: Mapping[str, float]
    warnings: tuple[str, ...]


def fit_links(medians: Mapping[Point, float], confidence: float = 0.95) -> Fit:
    """Fit both links to point -> median seconds.

    ValueError if there are fewer than two message sizes for a link.
    """
    points = list(medians)
    measured = np.array([medians[p] for p in points])
    _check_sizes(points)
    model = _Model(points)
    start = model.start(measured)
    scale = np.where(start > 0, start, model.fallback(measured))
    found = least_squares(
        lambda x: np.log(model.predict(x * scale) / measured),
        np.maximum(start / scale, 1e-3),
        bounds=(model.least / scale, np.inf),
        loss="soft_l1",
        f_scale=KNEE,
        xtol=1e-12,
        ftol=1e-12,
        gtol=1e-12,
        max_nfev=500,
    )
    numbers = found.x * scale
    numbers[(model.least == 0) & (numbers * model.reach < LEAST_LATENCY)] = 0.0
    predicted = model.predict(numbers)
    residuals = tuple(
        Residual(p, float(m), float(q)) for p, m, q in zip(points, measured, predicted, strict=True)
    )
    r2 = _r2(np.log(measured), np.log(predicted))
    intervals = model.intervals(numbers, np.log(predicted / measured), confidence)
    values = dict(zip(COLUMNS, map(float, numbers), strict=True))
    return Fit(
        intra=_link(values, "intra", model.used),
        inter=_link(values, "inter", model.used),
        shuffle_s_per_byte=values[SHUFFLE],
        intervals=intervals,
        r2=r2,
        residuals=residuals,
        errors=_errors(residuals, lambda p: p.kind),
        warnings=(*_warnings(r2, residuals), *_undetermined(intervals)),
    )


class _Model:
    """The price model over `points`: linear in its numbers but for the maximum of two links.

    used: the numbers that some point depends on;  reach: the most that each is multiplied with
    """

    def __init__(self, points: Sequence[Point]) -> None:
        most = max(p.shape.groups * p.shape.gpus for p in points)
        table = np.zeros((len(points), len(COLUMNS)))
        self._nic = np.zeros(len(points))
        self._device = np.zeros(len(points))
        self._crosses = np.array([p.shape.nodes > 1 for p in points])
        for row, point in enumerate(points):
            shape = point.shape
            work = work_of(point.kind, shape.nodes, shape.gpus, shape.groups)
            link = "intra" if shape.nodes == 1 else "inter"
            if shape.nodes > 1 and shape.groups * shape.gpus < most:
                link = ALONE
            if point.kind == "send":
                table[row, COLUMNS.index(f"{link}.transfer_s")] = 1
            else:
                table[row, COLUMNS.index(f"{link}.call_s")] = 1
                table[row, COLUMNS.index(f"{link}.alpha_s")] = work.messages
            table[row, COLUMNS.index(SHUFFLE)] = work.shuffled * point.bytes
            self._nic[row] = work.nic * point.bytes
            if shape.gpus > 1 or shape.nodes == 1:
                self._device[row] = work.device * point.bytes
        self._table = table
        self.least = np.array([LEAST_BETA if "beta" in name else 0.0 for name in COLUMNS])
        self.reach = np.maximum(self.rows(np.ones(len(COLUMNS))).max(axis=0), 1.0)
        self.used = {
            name
            for index, name in enumerate(COLUMNS)
            if table[:, index].any() or (index == INTER_BETA and self._crosses.any())
        } | ({"intra.beta_s_per_byte"} if self._device.any() else set())

    def rows(self, numbers: Array) -> Array:
        """The derivative of the predictions by each number."""
        through_nic = self._nic * numbers[INTER_BETA]
        inside = self._device * numbers[INTRA_BETA]
        nic_decides = self._crosses & (through_nic >= inside)
        rows = self._table.copy()
        rows[:, INTRA_BETA] = np.where(nic_decides, 0.0, self._device)
        rows[:, INTER_BETA] = np.where(nic_decides, self._nic, 0.0)
        return rows

    def predict(self, numbers: Array) -> Array:
        return np.maximum(self.rows(numbers) @ numbers, LEAST_LATENCY)

    def start(self, measured: Array) -> Array:
        """The non-negative least squares of relative errors, as if the NIC always decided."""
        numbers = np.zeros(len(COLUMNS))
        numbers[INTER_BETA] = 1.0
        rows = self.rows(numbers) / measured[:, None]
        norms = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
        found, _ = nnls(rows / norms, np.ones(len(measured)))
        return np.maximum(found / norms, self.least)

    def fallback(self, measured: Array) -> Array:
        """A scale for numbers that start at zero: a thousandth of what the points would give."""
        return 1e-3 * float(np.median(measured)) / self.reach

    def intervals(
        self, numbers: Array, errors: Array, confidence: float
    ) -> dict[str, tuple[float, float]]:
        """Of every number that the data say something about."""
        weights = 1 / np.sqrt(1 + (errors / KNEE) ** 2)
        jacobian = self.rows(numbers) / self.predict(numbers)[:, None]
        used = np.flatnonzero(np.abs(jacobian).max(axis=0) > 0)
        jacobian = jacobian[:, used]
        norms = np.linalg.norm(jacobian, axis=0)
        freedom = max(1, len(errors) - len(used))
        variance = float((weights * errors**2).sum()) / freedom
        normal = (jacobian / norms).T @ (weights[:, None] * (jacobian / norms))
        spread = np.sqrt(variance * np.diag(np.linalg.pinv(normal))) / norms
        half = float(student.ppf((1 + confidence) / 2, freedom)) * spread
        return {
            COLUMNS[i]: (max(0.0, float(numbers[i] - h)), float(numbers[i] + h))
            for i, h in zip(used, half, strict=True)
            if not COLUMNS[i].startswith(ALONE)
        }


def _link(values: Mapping[str, float], name: str, used: set[str]) -> Link | None:
    """None if no point used the link."""
    if f"{name}.beta_s_per_byte" not in used:
        return None
    transfer = f"{name}.transfer_s"
    return Link(
        alpha_s=values[f"{name}.alpha_s"],
        beta_s_per_byte=values[f"{name}.beta_s_per_byte"],
        call_s=values[f"{name}.call_s"],
        transfer_s=values[transfer] if transfer in used else None,
    )


def _check_sizes(points: Sequence[Point]) -> None:
    if not points:
        raise ValueError("the record has no finished measurement; run autoddl calibrate again")
    for crosses, where in ((False, "inside a host"), (True, "between hosts")):
        sizes = {p.bytes for p in points if (p.shape.nodes > 1) == crosses}
        if len(sizes) == 1:
            raise ValueError(
                f"a fit needs at least two message sizes {where}, the record has only "
                f"{sizes.pop()} bytes; measure more (--max-bytes, --budget)"
            )


def _r2(measured: Array, predicted: Array) -> float:
    spread = float(((measured - measured.mean()) ** 2).sum())
    return 1 - float(((measured - predicted) ** 2).sum()) / spread if spread > 0 else 0.0


def _errors(residuals: Sequence[Residual], key: Callable[[Point], str]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for residual in residuals:
        groups.setdefault(key(residual.point), []).append(abs(residual.error))
    return {name: float(np.median(errors)) for name, errors in groups.items()}


def _warnings(r2: float, residuals: Sequence[Residual]) -> tuple[str, ...]:
    """What a reader must know before trusting the prices; () if nothing."""
    found = []
    if r2 < BAD_R2:
        found.append(f"the fit explains only R2 = {r2:.2f} of the measured times ({BAD_R2} wanted)")
    whole = _errors(residuals, lambda p: p.kind)
    found += [
        f"{kind} is off by {error:.0%} (median; {BAD_ERROR:.0%} allowed)"
        for kind, error in whole.items()
        if error > BAD_ERROR
    ]
    found += [
        f"{name} is off by {error:.0%} (median; {BAD_ERROR:.0%} allowed)"
        for name, error in _errors(residuals, lambda p: f"{p.kind} in groups of {p.shape}").items()
        if error > BAD_ERROR and whole[name.split(" ")[0]] <= BAD_ERROR
    ]
    return tuple(found)


def _undetermined(intervals: Mapping[str, tuple[float, float]]) -> list[str]:
    """The links whose bandwidth the data leave open."""
    return [
        f"the data do not tell the bandwidth of {link} ({name} is from 0 to {high:.2g}); measure "
        "larger messages"
        for link in ("intra", "inter")
        for name in (f"{link}.beta_s_per_byte",)
        for low, high in (intervals.get(name, (1.0, 1.0)),)
        if low == 0
    ]
