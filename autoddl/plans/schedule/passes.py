"""A pass of a micro-batch through a mesh: operators' turns, and the queues that they hold.

`Operator` has the seconds, from which come its turns, forward and backward. `step` puts a turn down
as tasks; where only the end of a pass is wanted, as for each of many choices of buckets, `Course`
has the same with what computes in one stretch added up: 20 to 100 times as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...graph.graph import Op

Cause = Literal["forward", "backward", "collective", "gather", "exchange"]


@dataclass(frozen=True, slots=True)
class Operator:
    """What an operator does in a pass of one micro-batch, in seconds.

    first:   its parameters' gathers, once an iteration; `again`: before each forward pass (ZeRO's
             stage 3), also if they take no time; `back`: before the backward pass, where no forward
             pass that was run again has left them
    arrive:  collectives of its other inputs; `inner`: its own, forward and backward
    return_: collectives of its inputs' gradients; exchanged: numbers of its parameters' gradients
    """

    op: Op
    forward_s: float
    backward_s: float
    first: tuple[float, ...]
    again: tuple[float, ...]
    back: tuple[float, ...]
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
        own = self.op.name, self.back, (), "backward", self.backward_s
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


class Stretch(NamedTuple):
    """Seconds before, of, and after computation without communication between.

    ahead: of gathers for the next reader, beside this one
    waits: for gathers that were ahead
    """

    before: float
    computing: float
    after: float
    ahead: float = 0.0
    waits: bool = False


class Free(NamedTuple):
    """When the queues are free; has_computed: something has, since the step began."""

    compute_s: float
    communicate_s: float
    has_computed: bool = False


@dataclass(frozen=True)
class Course:
    """A pass as its two queues see it.

    made:   gradient -> the stretch after which it is there
    closes: number of a backward pass, from 0 on -> the stretch that it is the end of
    """

    stretches: tuple[Stretch, ...]
    made: Mapping[int, int]
    closes: Mapping[int, int]

    @staticmethod
    def of(turns: Sequence[Turn], is_ahead: bool = False) -> Course:
        """Turns without communication between them, and gradients before it, are one stretch.

        is_ahead: a reader's gathers are asked for when the reader before it begins
        """
        found: list[Stretch] = []
        made: dict[int, int] = {}
        closes: dict[int, int] = {}  # stretch -> the backward pass at its end
        passes = itertools.count()
        readers = [sum(turn.gathers) for turn in turns if turn.gathers] if is_ahead else []
        following, waits = iter(readers[1:]), False
        is_closed = True  # by a collective or a gradient
        for turn in turns:
            reads = is_ahead and bool(turn.gathers)
            before, after = sum(turn.before), sum(turn.after)
            if not (reads and waits):
                before += sum(turn.gathers)
            ahead = next(following, None) if reads else None
            if is_closed or before or reads:
                found.append(Stretch(before, turn.seconds, after, ahead or 0.0, reads and waits))
            else:
                computing = found[-1].computing + turn.seconds
                found[-1] = found[-1]._replace(computing=computing, after=after)
            waits = ahead is not None if reads else waits
            closes.pop(len(found) - 1, None)
            if turn.cause == "backward":
                closes[len(found) - 1] = next(passes)
            made.update((number, len(found) - 1) for number in turn.made)
            is_closed = bool(after or turn.made)
        return Course(tuple(found), made, {number: at for at, number in closes.items()})

    @cached_property
    def seconds(self) -> float:
        return sum(own.before + own.computing + own.after for own in self.stretches)

    @cached_property
    def made_s(self) -> dict[int, float]:
        """When each gradient may leave, from the start of the pass, if no exchange delays it."""
        found: list[float] = []
        end_s = 0.0
        for own in self.stretches:
            found.append(end_s + own.before + own.computing)
            end_s = found[-1] + own.after
        return {number: found[at] for number, at in self.made.items()}

    def run(self, free: Free, leaving: Sequence[tuple[int, float]] = ()) -> Free:
        """When the queues are free after it, if before they are `free`.

        leaving: the last stretch that each bucket needs, and its seconds, in order
        """
        compute_s, communicate_s, has_computed = free
        buckets = iter((*leaving, (-1, 0.0)))
        ends: list[float] = []
        needed, seconds = next(buckets)
        gathered_s = 0.0
        for number, (before, computing, after, ahead, waits) in enumerate(self.stretches):
            if before:
                communicate_s = compute_s = max(compute_s, communicate_s) + before
            there_s = gathered_s if waits else 0.0
            if ahead:
                gathered_s = communicate_s = max(compute_s, communicate_s) + ahead
                if not has_computed:  # a gather that follows nothing has both queues
                    compute_s = communicate_s
            elif waits:
                gathered_s = 0.0
            if computing:
                compute_s, has_computed = max(compute_s, there_s) + computing, True
            ends.append(compute_s)
            if after:
                communicate_s = compute_s = max(compute_s, communicate_s) + after
            while -1 < needed <= number:
                communicate_s = max(ends[needed], communicate_s) + seconds
                needed, seconds = next(buckets)
        return Free(compute_s, communicate_s, has_computed)
