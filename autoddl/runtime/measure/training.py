"""Predicted against measured: what training takes, beside what the plan says of it.

Of a trainer's first `LAST` steps some are left out as warm-up. The others are timed until all that
they have asked for is done. Some of them are taken apart: the stage's own work is timed piece by
piece (`work`), in which nothing communicates beside computation, and its collectives are written
down. When these steps are over, the same
collectives run again, on zeros and one right after the other, as `autoddl calibrate` times them,
those inside a host and those between hosts apart; so do the transfers between stages. Then

    computation = the stage's own work - its collectives
    the rest    = the step - the stage's own work

The rest is the optimizer's update, which plans do not price, and what stages wait for each other.
Of a stage's devices the slowest counts. All of it costs a few steps' communication, once.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ...plans import Plan
from ...plans.figures import Link, figures
from ...plans.format import written
from ...plans.report.machine import estimates_notes
from ...plans.schedule.simulate import Deadlock, sorted_tasks
from ...plans.stage_figures import stage_figures
from ..comm.groups import Groups, Traffic
from ..comm.transfers import Resharding
from .stopwatch import Stopwatch

FIRST, APART, LAST = 4, (5, 7, 9), 10  # steps that are timed, of which these are taken apart
FAR = 1.3  # that many times more or less than planned is off
SHARE = 0.05  # of a step: what is off by less seconds changes nothing
LEAST_BYTES = 100e6  # what libraries and the allocator's blocks may take beside a step
QUICK_S, AGAIN = 0.1, 2  # what takes less is timed so often again
RECENT = 20  # steps whose median gives the pace

_INSIDE, _BETWEEN = "communication inside a host", "communication between hosts"
_TRANSFERS = "transfers between stages"
_REST = "the update and waiting"
_HOSTS = {False: "inside a host", True: "between hosts"}

_MEASURE = (
    "`autoddl calibrate --model MODULE:FUNCTION` measures this machine, and the model's operators "
    "on it; plan again with the file that it writes"
)
_ROOM = "plan with a lower memory limit if the devices run out of memory"
T = TypeVar("T")
Reshards = Mapping[tuple[Link, str], Resharding]
_log = logging.getLogger("autoddl")


@dataclass(frozen=True)
class Compared:
    """Seconds or bytes of a step, as planned and as measured."""

    predicted: float
    measured: float
    unit: Literal["seconds", "bytes"] = "seconds"

    def is_off(self, least: float) -> bool:
        """True if one is `FAR` times the other, and they differ by more than `least`."""
        small, large = sorted((self.predicted, self.measured))
        return large > FAR * small and large - small > least

    def __str__(self) -> str:
        ratio = self.measured / self.predicted if self.predicted else 0.0
        times = f" ({ratio:.0f} times)" if ratio >= 10 else f" ({ratio:.2g} times)"
        texts = (written(value, self.unit) for value in (self.measured, self.predicted))
        return f"{' instead of '.join(texts)}{times if self.predicted else ''}"


class StepWatch:
    """Follows the steps of a trainer on this rank. All ranks call its methods together.

    measured: by name what the first steps took, the same on every rank; empty before they are over
    groups:   of this rank's stage; world: of all ranks
    ranks:    the job's ranks of each part of the model
    reshards: this rank's transfers
    active:   False only counts the pace: where a step is not what was planned
    """

    def __init__(
        self,
        plan: Plan,
        groups: Groups,
        world: Groups,
        ranks: Sequence[Sequence[int]],
        active: bool,
    ) -> None:
        self.measured: Mapping[str, Compared] = {}
        self.reshards: Reshards = {}
        self._plan, self._ranks = plan, ranks[: plan.num_stages]
        self._groups, self._world = groups, Stopwatch(world)
        self._backend = groups.backend
        self._count = 0 if active and _can_block(plan) else LAST
        self._starts: deque[float] = deque(maxlen=RECENT + 1)
        self._held_bytes = self._backend.held_bytes()
        self._seconds: list[
            float
        ] = []  # of whole steps, of those taken apart, of the work in these
        self._apart_s: list[float] = []
        self._busy_s: list[float] = []
        self._log: list[Traffic] = []

    @property
    def step_s(self) -> float | None:
        """Median seconds from step to step of late, with all that happens between; None at first"""
        starts = list(self._starts)
        pairs = zip(starts, starts[1:], strict=False)
        return statistics.median(b - a for a, b in pairs) if len(starts) > 1 else None

    def start(self) -> None:
        """A step begins."""
        self._count += 1
        if self._count in APART:
            self._log = []
            self._busy_s.append(0.0)
            self._backend.wait()
        self._starts.append(time.perf_counter())

    def work(self, call: Callable[[], T]) -> T:
        """Run a piece of the stage's own work."""
        if self._count not in APART:
            return call()
        self._backend.wait()
        self._nothing_beside(self._log)
        started = time.perf_counter()
        result = call()
        self._backend.wait()
        self._nothing_beside(None)
        self._busy_s[-1] += time.perf_counter() - started
        return result

    def _nothing_beside(self, log: list[Traffic] | None) -> None:
        """Else what is hidden would count as computation that took less."""
        self._groups.log = log
        if self._backend.thread is not None:
            self._backend.thread.at_once = log is not None

    def end(self) -> None:
        """The step has been asked for."""
        if FIRST <= self._count <= LAST:
            self._backend.wait()
            seconds = time.perf_counter() - self._starts[-1]
            (self._apart_s if self._count in APART else self._seconds).append(seconds)
        if self._count == LAST:
            self._compare()

    def _compare(self) -> None:
        held = max(0, self._backend.held_bytes() - self._held_bytes)
        links = [self._collective_s(between) for between in (False, True)]
        transfers = self._transfer_seconds()
        times = map(statistics.median, (self._seconds, self._apart_s, self._busy_s))
        mine = np.array([*times, *links, float(held)])
        everyone = self._world.gather(mine)
        by_stage = [everyone[list(own)].max(axis=0) for own in self._ranks]
        self.measured = _compared(self._plan, by_stage, transfers)
        if self._backend.rank == 0:
            _tell(self._plan, self.measured)

    def _collective_s(self, between: bool) -> float:
        """Seconds of the step's collectives on one kind of link, done again."""
        mesh, watch = self._groups.mesh, Stopwatch(self._groups)
        mine = [t for t in self._log if (mesh.topology(t.axes)[0] > 1) == between]
        largest = {t.dtype: 0 for t in mine}
        for t in mine:
            largest[t.dtype] = max(largest[t.dtype], t.elements)
        zeros = {dtype: self._backend.zeros((size,), dtype) for dtype, size in largest.items()}

        def again() -> None:
            for traffic in mine:
                x = self._backend.narrow(zeros[traffic.dtype], 0, 0, traffic.elements)
                getattr(self._groups.along(traffic.axes), traffic.kind)(x, *traffic.more)

        return _least_s(watch, again) if mine else 0.0

    def _transfer_seconds(self) -> dict[bool, float]:
        """Between hosts or not -> seconds of all transfers between stages in a step, done again.

        Each begins when the one before has ended, as each has a stage in common with that.
        """
        found: dict[bool, float] = {}
        for between, ends in _transfers(self._plan).items():
            mine = [self.reshards[end] for end, _ in ends if end in self.reshards]

            def again(mine: Sequence[Resharding] = mine) -> None:
                for run in mine:
                    run.rehearse()

            found[between] = _least_s(self._world, again) * self._plan.micro_batches
        return found


def _transfers(plan: Plan) -> dict[bool, list[tuple[tuple[Link, str], float]]]:
    """Between hosts or not -> each link and direction, and its seconds in a micro-batch."""
    found: dict[bool, list[tuple[tuple[Link, str], float]]] = {}
    for link, plans in figures(plan).travel.reshards.items():
        for direction, reshard in zip("FB", plans, strict=True):
            if reshard is not None:
                ends = found.setdefault(bool(reshard.nic_bytes[0]), [])
                ends.append(((link, direction), reshard.seconds))
    return found


def _can_block(plan: Plan) -> bool:
    """True if a rank may wait for each transfer before it goes on, as a step taken apart does."""
    if len(plan.stages) == 1:  # no transfers; to price the passes would take a part of set-up
        return True
    try:
        sorted_tasks(figures(plan).schedule, overlap=False)
    except Deadlock:
        return False
    return True


def _least_s(watch: Stopwatch, call: Callable[[], Any]) -> float:
    """Seconds of the least disturbed of a few calls, of one if that takes long."""
    (first,) = watch.seconds(call, 1, 1)
    return min(first, *watch.seconds(call, 1, AGAIN)) if first < QUICK_S else first


def _compared(
    plan: Plan, by_stage: Sequence[np.ndarray], transfers: Mapping[bool, float]
) -> dict[str, Compared]:
    """by_stage: of each, what `_compare` gathers, on its slowest rank."""
    known = figures(plan)
    found = {"step": Compared(known.iteration_s, max(float(row[0]) for row in by_stage))}
    for number, row in enumerate(by_stage):
        of = f" of stage {number}" if plan.num_stages > 1 else ""
        _, apart_s, busy_s, inside_s, between_s, held = map(float, row)
        costs = [stage_figures(plan.stages[v]).cost for v in plan.parts_of(number)]
        planned_s = sum(cost.iteration_s for cost in costs)
        found |= {
            f"computation{of}": Compared(
                sum(cost.compute_s for cost in costs), max(0.0, busy_s - inside_s - between_s)
            ),
            f"{_INSIDE}{of}": Compared(sum(cost.intra_s.total for cost in costs), inside_s),
            f"{_BETWEEN}{of}": Compared(sum(cost.inter_s.total for cost in costs), between_s),
            f"{_REST}{of}": Compared(
                max(0.0, known.iteration_s - planned_s), max(0.0, apart_s - busy_s)
            ),
            f"memory{of}": Compared(known.largest_bytes[number], held, "bytes"),
        }
    for between, ends in _transfers(plan).items():
        planned_s = plan.micro_batches * sum(seconds for _, seconds in ends)
        found[f"{_TRANSFERS} {_HOSTS[between]}"] = Compared(planned_s, transfers[between])
    return {name: one for name, one in found.items() if one.predicted or one.measured}


def _tell(plan: Plan, measured: Mapping[str, Compared]) -> None:
    """Say once what is off: a warning if anything is."""
    step = measured["step"]
    off = {name: one for name, one in measured.items() if one.is_off(_least(name, one, step))}
    if not off:
        _log.info("after %d steps: a step takes %s, as planned", LAST, step)
        return
    lines = [f"after {LAST} steps, measured instead of predicted where that is off by over 30 %:"]
    lines += [f"  {name}: {one}" for name, one in off.items()]
    if any(one.unit == "seconds" for one in off.values()):
        lines += [*estimates_notes(plan.cluster), _MEASURE]
    if any(one.unit == "bytes" for one in off.values()):
        lines.append(_ROOM)
    _log.warning("\n".join(lines))


def _least(name: str, one: Compared, step: Compared) -> float:
    """What it must be off by, to be worth a word."""
    if one.unit == "bytes":
        return LEAST_BYTES
    if name.startswith(_REST):
        return (FAR - 1) * step.predicted
    return SHARE * max(step.predicted, step.measured)
