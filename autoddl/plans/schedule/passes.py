"""A pass of a micro-batch through a mesh: operators' turns, and the queues that they hold.

`Operator` has the seconds, from which come its turns, forward and backward. `step` puts a turn down
as tasks; where only the end of a pass is wanted, as for each of many choices of buckets, `Course`
has the same with what computes in one stretch added up: 20 to 100 times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...graph.graph import Op

Cause = Literal["forward", "backward", "collective", "gather", "exchange"]


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator does in a pass of one micro-batch, in seconds.

    first:   its parameters' gathers, once an iteration; `again`: before each pass (ZeRO's stage 3),
             also if they take no time
    arrive:  collectives of its other inputs; `inner`: its own, forward and backward
    return_: collectives of its inputs' gradients; exchanged: numbers of its parameters' gradients
    """

    op: Op
    forward_s: float
    backward_s: float
    first: tuple[float, ...]
    again: tuple[float, ...]
    arrive: tuple[float, ...]
    inner: tuple[float, float]
    return_: tuple[float, ...]
    exchanged: tuple[int, ...]

    @property
    def forward(self) -> Turn:
        before = self.arrive, self.inner[:1]
        return Turn(self.op.name, self.again, before[0], "forward", self.forward_s, before[1])

    @property
    def backward(self) -> Turn:
        after = (*self.inner[1:], *self.return_)
        own = self.op.name, self.again, (), "backward", self.backward_s
        return Turn(*own, after, self.exchanged)


@dataclass(frozen=True, slots=True)
class Turn:
    """An operator's turn in a pass: gathers, collectives before, computation, collectives after.

    made: numbers of the gradients that may leave then
    """

    operator: str
    gathers: tuple[float, ...]
    before: tuple[float, ...]
    cause: Cause
    seconds: float
    after: tuple[float, ...]
    made: tuple[int, ...] = ()


@dataclass(frozen=True)
class Course:
    """A pass as its two queues see it: seconds before, of, and after each stretch of computation.

    made: gradient -> the stretch after which it is there
    """

    stretches: tuple[tuple[float, float, float], ...]
    made: Mapping[int, int]

    @staticmethod
    def of(turns: Sequence[Turn]) -> Course:
        """Turns without communication between them, and gradients before it, are one stretch."""
        found: list[tuple[float, float, float]] = []
        made: dict[int, int] = {}
        is_closed = True  # by a collective or a gradient
        for turn in turns:
            before, after = sum(turn.gathers) + sum(turn.before), sum(turn.after)
            if is_closed or before:
                found.append((before, turn.seconds, after))
            else:
                found[-1] = (found[-1][0], found[-1][1] + turn.seconds, after)
            made.update((number, len(found) - 1) for number in turn.made)
            is_closed = bool(after or turn.made)
        return Course(tuple(found), made)

    @cached_property
    def seconds(self) -> float:
        return sum(map(sum, self.stretches))

    @cached_property
    def made_s(self) -> dict[int, float]:
        """When each gradient may leave, from the start of the pass, if no exchange delays it."""
        found: list[float] = []
        end_s = 0.0
        for before, compute, after in self.stretches:
            found.append(end_s + before + compute)
            end_s = found[-1] + after
        return {number: found[at] for number, at in self.made.items()}

    def run(
        self, free: tuple[float, float], leaving: Sequence[tuple[int, float]] = ()
    ) -> tuple[float, float]:
        """When the queues of computation and of communication are free after it, if before `free`.

        leaving: the last stretch that each bucket needs, and its seconds, in order
        """
        compute_s, communicate_s = free
        buckets = iter((*leaving, (-1, 0.0)))
        ends: list[float] = []
        needed, seconds = next(buckets)
        for number, (before, own, after) in enumerate(self.stretches):
            if before:
                communicate_s = compute_s = max(compute_s, communicate_s) + before
            compute_s += own
            ends.append(compute_s)
            if after:
                communicate_s = compute_s = max(compute_s, communicate_s) + after
            while -1 < needed <= number:
                communicate_s = max(ends[needed], communicate_s) + seconds
                needed, seconds = next(buckets)
        return compute_s, communicate_s
