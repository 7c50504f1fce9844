"""The bytes of the executor's fullest moment, of a step with runs of equal blocks by four of each.

The tape of a block that is planned as its neighbours are is theirs, later. So in the middle of a
run memory grows by the same bytes f from block to block of the forward pass, and by the same b,
mostly less than nothing, of the backward pass. Of the moments of n blocks that are left out

    alive + i f,  i = 1 .. n        then        alive + n f + i b,  i = 1 .. n

the fullest is at the first or the last i, and these are moments of the blocks beside them, which
are there (`shortened`). What follows them lacks n f bytes, and what follows the backward pass of
those left out n (f + b).

It must be seen on the tape that the middle repeats: the second and the third of the four blocks
make tensors of the same sizes, which are there until the same actions of the same or the next
block, and hand on the same strides. Otherwise the tape of the whole step is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .lifetime import StepTape
from .planned_step import PlannedStep
from .shortened import KEPT, Run, shortened
from .strides import Strides
from .tape import Tape

Ints = NDArray[np.int64]


def fullest_bytes(plan: PlannedStep) -> int:
    """As `memory_peak(plan, "executor").bytes`."""
    short = shortened(plan)
    found = _bytes(short.plan, short.runs)
    if found is None:
        found = _bytes(plan, ())
    assert found is not None
    return found


def _bytes(plan: PlannedStep, runs: Sequence[Run]) -> int | None:
    """None if a run's tape does not repeat."""
    step = StepTape(plan)
    moments = _Moments.of(step.build())
    total, always = moments.alive, sum(step.tape.always.values())
    lumps = np.zeros(len(total), dtype=np.int64)
    for run in runs:
        middle = _Middle(run, step, moments)
        if not middle.repeats:
            return None
        lumps[middle.forward[2].start :] += run.left_out * middle.growth(middle.forward[1:3])
        lumps[middle.backward[1].start :] += run.left_out * middle.growth(middle.backward[2:0:-1])
        always += run.left_out * middle.always
    return max(int((total + lumps + moments.workspace).max(initial=0)), 0) + always


@dataclass(frozen=True)
class _Moments:
    """Of a tape without places that are taken over.

    made, death, size: [tensors] actions, and bytes; the death of what stays is the last action + 1
    change, alive, workspace: [actions] bytes
    """

    made: Ints
    death: Ints
    size: Ints
    change: Ints
    workspace: Ints

    @staticmethod
    def of(tape: Tape) -> _Moments:
        last = tape.last_reads()
        makes = [
            (n, last[key], size) for n, a in enumerate(tape.actions) for key, size, _ in a.makes
        ]
        made, death, size = np.array(makes, dtype=np.int64).reshape(-1, 3).T
        change = np.zeros(len(tape.actions) + 2, dtype=np.int64)
        np.add.at(change, made, size)
        np.add.at(change, death + 1, -size)
        workspace = np.array([action.workspace for action in tape.actions], dtype=np.int64)
        return _Moments(made, death, size, change[: len(tape.actions)], workspace)

    @cached_property
    def alive(self) -> Ints:
        return self.change.cumsum()

    def made_in(self, part: range, until: Sequence[range]) -> tuple[Ints, Ints]:
        """Sizes and deaths of what is made in a part; the latter relative to those of `until`.

        A death elsewhere is negative.
        """
        low, high = np.searchsorted(self.made, (part.start, part.stop))
        death, actions = self.death[low:high], len(self.workspace)
        relative = np.where(death == actions, actions * len(until), -1)
        for number, other in enumerate(until):
            is_there = (death >= other.start) & (death < other.stop)
            relative[is_there] = (death + actions * number - other.start)[is_there]
        return self.size[low:high], relative


@dataclass(frozen=True)
class _Middle:
    """What is left of a run on the tape of a step."""

    run: Run
    step: StepTape
    moments: _Moments

    @cached_property
    def forward(self) -> list[range]:
        """Actions of each period's forward pass."""
        ends = [self.step.ends[end - 1][0] if end else 0 for end in self._ends]
        return list(map(range, ends, ends[1:]))

    @cached_property
    def backward(self) -> list[range]:
        """Actions of each period's backward pass; that of the last comes first."""
        ends = [self.step.ends[2 * self._count - 1 - end][0] for end in self._ends]
        return list(map(range, ends[1:], ends))

    @property
    def _ends(self) -> range:
        run = self.run
        return range(run.first, run.first + KEPT * run.period + 1, run.period)

    @property
    def _count(self) -> int:
        return len(self.step.plan.graph.ops)

    def growth(self, parts: Sequence[range]) -> int:
        """From one part to the next one."""
        one, two = (self.moments.alive[part.start] for part in parts)
        return int(two - one)

    @property
    def always(self) -> int:
        """Bytes that a period adds to what is there all the time."""
        return self._always(1)

    def _always(self, number: int) -> int:
        sums, (low, high) = (
            [always for _, always in self.step.ends],
            self._ends[number : number + 2],
        )
        last = 2 * self._count - 1
        return sums[high - 1] - sums[low - 1] + sums[last - low] - sums[last - high]

    @property
    def repeats(self) -> bool:
        """Whether the tapes of the second and the third period are the same."""
        forward, backward = self.forward, self.backward
        return (
            self._always(1) == self._always(2)
            and self._strides(1) == self._strides(2)
            and self._equal(forward[1], forward[2])
            and self._equal(backward[2], backward[1])
            and _are_equal(*(self._made_forward(n) for n in (1, 2)))
            and _are_equal(*(self._made_backward(n) for n in (1, 2)))
        )

    def _equal(self, one: range, two: range) -> bool:
        """Whether two parts need the same workspaces, and as many bytes more or less."""
        change, workspace = self.moments.change, self.moments.workspace
        return len(one) > 0 and all(
            np.array_equal(found[one.start : one.stop], found[two.start : two.stop])
            for found in (change, workspace)
        )

    def _made_forward(self, number: int) -> tuple[Ints, Ints]:
        parts = [*self.forward[number : number + 2], *self.backward[number : number + 2]]
        return self.moments.made_in(self.forward[number], parts)

    def _made_backward(self, number: int) -> tuple[Ints, Ints]:
        parts = self.backward[number], self.backward[number - 1]
        return self.moments.made_in(self.backward[number], parts)

    def _strides(self, number: int) -> list[tuple[Strides | None, ...]]:
        """Of what a period makes, of what it makes again, and of gradients."""
        step, (low, high) = self.step, self._ends[number : number + 2]
        return [
            tuple(map(step.strides.get, (name, step.value(name), step.arrived.get(name, ""))))
            for op in step.plan.graph.ops[low:high]
            for name in op.outputs
        ]


def _are_equal(one: tuple[Ints, Ints], two: tuple[Ints, Ints]) -> bool:
    """Of sizes and relative deaths, all of which are known."""
    return all(map(np.array_equal, one, two)) and bool((one[1] >= 0).all())
