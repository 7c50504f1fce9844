"""The step of a mesh with several micro-batches in flight (`turns`), and the best turns of two.

A strand is what one micro-batch does in a step: tasks in order, each on the queue of computation,
of communication, or both. Two of them, in flight at once, are a job shop of two jobs, whose optimum
is a shortest path (Akers, "A graphical approach to production scheduling problems", 1956). In a
plane with the progress of one strand along each axis, a path goes from no progress to all of it;
right, up, or along the diagonal where both strands run, which takes as long as either. Two tasks
of one queue are a rectangle that no path may cross. From a corner, a path goes along the diagonal
up to the first rectangle that is in its way, and then around it, by its upper left or its lower
right corner. So with n and m tasks there are at most (n + 1) (m + 1) corners with two ways on from
each. No way from a corner to the end takes less than what both strands still have to do on one
queue, so the search goes first where that is least (A*, Hart, Nilsson and Raphael 1968): it sees a
small part of the corners where one queue is nearly always busy. `interleaved` is that search.

Neighbours on one queue that are short are one task of a path, as paths through thousands of
operators would take seconds to find. Of more micro-batches than two, pairs follow one another.

HiDup (Zhang et al., "Accelerating Large-Scale Distributed Neural Network Training with SPMD
Parallelism", SoCC 2022, section 4.2) lets two halves of a batch take turns, stage by stage, in
lock-step. That is a path, too, so the shortest is never longer.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ...cost.exchange import Buckets, Waits
from .orders import Turns, num_strands
from .step import COMPUTING, Cause, Step, StepMaker, StepTask

_COMPUTE, _COMMUNICATE = 1, 2  # bits
_ALIKE = 3  # groups: any further one takes as long as the last of these
_SLACK = 0.005  # of a path: the shortest of 600 tasks takes 4.3 s to find, this one 0.01
# Corners that are looked at before the slack is raised. With a fifth of them the plans of GPT-16B
# on 128 devices and of GPT-6.8B on 64 are 8 and 0.3 % slower, with 0.8 and 3 times as many as
# without an end; twice as many make a path of these 0.27 % shorter at best, in 1.6 times the time.
# Random strands of 2,000 tasks take 1.7 s instead of 8 to 18, and their paths are a little longer.
_MOST_CORNERS, _RAISED = 25_000, 2.0
# 32 and 128 gave the same steps of VGG13 on 16 and of a small GPT on 2x2, in times within 8 %.
_SHARE = 64  # of a strand's seconds is what neighbours on one queue take together at most
Point = tuple[int, int]  # how many tasks of each strand are done
Strand = Sequence[tuple[int, float]]  # (queues that it holds, as bits, and seconds) of each task


class _Piece(NamedTuple):
    """A task of a strand."""

    cause: Cause
    operator: str
    seconds: float
    queues: int

    @staticmethod
    def of(cause: Cause, operator: str, seconds: float, is_alone: bool = False) -> _Piece:
        """is_alone: the strand's next one cannot wait for another strand."""
        if cause in COMPUTING:
            return _Piece(cause, operator, seconds, _COMPUTE)
        queues = _COMPUTE | _COMMUNICATE if is_alone else _COMMUNICATE
        return _Piece(cause, operator, seconds, queues)


@dataclass(frozen=True)
class TurnsMaker(StepMaker):
    """Makes the step of a plan with several micro-batches in flight."""

    turns: Turns

    @classmethod
    def of(cls, maker: StepMaker, turns: Turns) -> TurnsMaker:
        found = cls(
            maker.graph,
            maker.model,
            maker.micro_batches,
            maker.ops,
            maker.edges,
            maker.again,
            turns,
        )
        own = ((name, vars(maker).get(name)) for name in ("operators", "exchanges", "prices"))
        vars(found).update((name, known) for name, known in own if known is not None)
        return found

    @cached_property
    def pieces(self) -> tuple[tuple[_Piece, ...], ...]:
        return pieces_of(self)

    def step(self, buckets: Buckets, micro_batches: int | None = None, waits: Waits = ()) -> Step:
        """As of a `StepMaker`; None for those of the plan, but three groups at most.

        No bucket waits: a collective of one micro-batch runs beside another one's computation.

        micro_batches: rounded up to whole groups
        """
        assert not any(waits)
        width = num_strands(self.turns)
        groups = min(self.micro_batches // width, _ALIKE)
        if micro_batches is not None:
            groups = -(-micro_batches // width)
        made = _Making(self, buckets)
        made.start()
        for number in range(groups):
            made.group(number * width, number == groups - 1)
        made.finish(groups * width - 1)
        return Step(tuple(made.tasks), buckets, self.exchanges, self.slowdown)

    def end_s(self, buckets: Buckets, micro_batches: int, waits: Waits = ()) -> float:
        return self.step(buckets, micro_batches, waits).end_s

    @cached_property
    def ready_s(self) -> Mapping[int, float]:
        """When each gradient is there in a group's turns, if all tasks stood in one queue."""
        tasks = self.step(tuple((n,) for n in range(len(self.exchanges))), 1).tasks
        own = (0.0 if task.cause == "exchange" else task.seconds for task in tasks)
        ends = tuple(itertools.accumulate(own))
        made = {task.members[0]: max(task.needs) for task in tasks if task.cause == "exchange"}
        return {number: ends[task] for number, task in made.items()}

    def hidden_s(self, buckets: Buckets, waits: Waits = ()) -> float:
        """Seconds of communication that run beside computation, in the whole step."""

        def hidden(groups: int) -> float:
            step = self.step(buckets, groups * width, waits)
            return sum(task.seconds for task in step.tasks) - step.end_s

        width = num_strands(self.turns)
        groups = self.micro_batches // width
        if groups <= _ALIKE:
            return hidden(groups)
        found = hidden(_ALIKE)
        return found + (groups - _ALIKE) * (found - hidden(_ALIKE - 1))


@dataclass
class _Making:
    """A step that is being put down, task by task.

    ready: exchange -> the number of the task that has made its gradient in the last micro-batch
    left:  how many buckets have left
    """

    maker: TurnsMaker
    buckets: Buckets
    tasks: list[StepTask] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    left: int = 0

    def start(self) -> None:
        for own in self.maker.operators:
            self.tasks += [StepTask("gather", own.op.name, s, 0) for s in own.first if s]

    def group(self, first: int, is_last: bool) -> None:
        """The micro-batches from `first` on, in turns."""
        width = num_strands(self.maker.turns)
        at, last, computed = [0] * width, [-1] * width, [-1] * width
        count, pieces, tasks = len(self.maker.operators), self.maker.pieces, self.tasks
        for strand, to in self.maker.turns:
            micro_batch = first + strand
            for position in range(at[strand], to):
                for cause, name, seconds, queues in pieces[position]:
                    before = max(last[strand], 0)
                    # what holds both queues comes after all that is in them anyway
                    holds_both = queues == _COMPUTE | _COMMUNICATE
                    needs = () if holds_both or not tasks else (before,)
                    last[strand] = len(tasks)
                    if queues == _COMPUTE:
                        computed[strand] = last[strand]
                    tasks.append(StepTask(cause, name, seconds, micro_batch, (), needs))
                back = position + 1 - 2 * count
                if back > 0 and back % 2 == 0:
                    is_made = is_last and strand == width - 1
                    self._made(count - back // 2, micro_batch, computed[strand], is_made)
            at[strand] = to

    def finish(self, micro_batch: int) -> None:
        """What travels once, if there are no buckets."""
        for number, exchange in enumerate(self.maker.exchanges if not self.buckets else ()):
            if not exchange.is_often:
                self._exchange(exchange.op, (number,), micro_batch, ())

    def _made(self, number: int, micro_batch: int, task: int, is_made: bool) -> None:
        """Gradients of an operator's parameters are there, of all micro-batches if `is_made`."""
        own, every = self.maker.operators[number], self.maker.exchanges
        needs = (task,) if task >= 0 else ()
        for number in own.exchanged:
            if every[number].is_often:
                self._exchange(own.op.name, (number,), micro_batch, needs)
            elif is_made:
                self.ready[number] = task
        while is_made and own.exchanged and self.left < len(self.buckets):
            members = tuple(n for n in self.buckets[self.left] if not every[n].is_often)
            if any(number not in self.ready for number in members):
                return
            if members:
                needs = tuple({max(self.ready[number] for number in members)} - {-1})
                self._exchange(own.op.name, members, micro_batch, needs)
            self.left += 1

    def _exchange(
        self, name: str, members: tuple[int, ...], micro_batch: int, needs: tuple[int, ...]
    ) -> None:
        seconds = self.maker.bucket_s(members)
        self.tasks.append(StepTask("exchange", name, seconds, micro_batch, members, needs))


def pieces_of(maker: StepMaker) -> tuple[tuple[_Piece, ...], ...]:
    """Of each position, counted from 0, the tasks on the way to it."""
    found: list[tuple[_Piece, ...]] = []
    for own in maker.operators:
        name = own.op.name
        brought = [_Piece.of("gather", name, s) for s in own.again]
        brought += [_Piece.of("collective", name, s) for s in own.arrive]
        inside = _Piece.of("collective", name, own.inner[0], is_alone=True)
        found += [tuple(brought), (_Piece.of("forward", name, own.forward_s), inside)]
    forward = list(found)
    again, rerun = maker.again.block_of, set[int]()
    numbers = range(len(maker.operators))
    for number in reversed(numbers):
        own = maker.operators[number]
        name = own.op.name
        pieces: list[_Piece] = []
        block = again.get(name)
        if block is not None and block not in rerun:
            rerun.add(block)
            for inside in numbers:
                if again.get(maker.operators[inside].op.name) == block:
                    pieces += [*forward[2 * inside], *forward[2 * inside + 1]]
        pieces += [_Piece.of("gather", name, s) for s in own.back]
        pieces.append(_Piece.of("backward", name, own.backward_s))
        pieces.append(_Piece.of("collective", name, own.inner[1]))
        alone = tuple(_Piece.of(p.cause, p.operator, p.seconds, is_alone=True) for p in pieces)
        found += [alone, tuple(_Piece.of("collective", name, s) for s in own.return_)]
    return tuple(tuple(piece for piece in pieces if piece.seconds) for pieces in found)


def best_turns(maker: StepMaker) -> Turns:
    """Of two strands, by Akers' path. No gradients travel beside them there."""
    last = 4 * len(maker.operators)
    segments = list(_segments(pieces_of(maker)))
    ends = [end for _, _, end in segments[:-1]] + [last] * min(len(segments), 1)
    strand = [(queues, seconds) for queues, seconds, _ in segments]
    at, names = [0, 0], (0, 1)
    turns: list[tuple[int, int]] = []
    for mover, _ in interleaved(strand, strand, _SLACK).order:
        if at[0] == at[1]:
            names = (mover, 1 - mover)
        name = names.index(mover)
        if turns and turns[-1][0] == name:
            turns.pop()
        turns.append((name, ends[at[name]]))
        at[name] += 1
    return tuple(turns) if segments else ((0, last), (1, last))


def _segments(pieces: Sequence[Sequence[_Piece]]) -> Iterator[tuple[int, float, int]]:
    """(queues, seconds, the position that it ends at) of neighbours on one queue, up to a share."""
    most_s = sum(piece.seconds for some in pieces for piece in some) / _SHARE
    queues, seconds, end = 0, 0.0, 0
    for position, some in enumerate(pieces):
        own_s = sum(piece.seconds for piece in some)
        if own_s:
            own = functools.reduce(operator.or_, (piece.queues for piece in some))
            if queues and (own != queues or seconds + own_s > most_s):
                yield queues, seconds, end
                seconds = 0.0
            queues, seconds = own, seconds + own_s
        end = position + 1
    if queues:
        yield queues, seconds, end


@dataclass(frozen=True)
class Interleaving:
    """seconds: until both strands have ended; starts: of each strand's tasks."""

    seconds: float
    starts: tuple[tuple[float, ...], tuple[float, ...]]

    @property
    def order(self) -> list[Point]:
        """(strand, task), as they start: the one order in which every device issues them."""
        every = [
            (start, strand, task)
            for strand, starts in enumerate(self.starts)
            for task, start in enumerate(starts)
        ]
        return [(strand, task) for _, strand, task in sorted(every)]


def interleaved(first: Strand, second: Strand, slack: float = 0.0) -> Interleaving:
    """The two strands in the least time; each task runs without a break.

    slack: so much longer than the least it may take, relative; then far fewer corners are looked
           at, and where they still are many, it is raised; 0 for the least
    ValueError unless every task takes time: one that takes none holds no queue.
    """
    strands = first, second
    if not all(seconds > 0 for strand in strands for _, seconds in strand):
        raise ValueError("every task of a strand takes time; leave those out that take none")
    ends = tuple([0.0, *itertools.accumulate(seconds for _, seconds in s)] for s in strands)
    path = _shortest(strands, ends, slack)
    starts: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for (source, at_s), (point, _) in itertools.pairwise(path):
        for own, found, a, b in zip(ends, starts, source, point, strict=True):
            found.update({task: at_s + own[task] - own[a] for task in range(a, b)})
    one, other = (tuple(found[n] for n in range(len(found))) for found in starts)
    return Interleaving(path[-1][1], (one, other))


def _shortest(
    strands: tuple[Strand, Strand], ends: Sequence[Sequence[float]], slack: float
) -> list[tuple[Point, float]]:
    """The corners of a path, and when it is there; see the module's docstring.

    Where the strands are alike, a point stands for its mirror image, too: half as many are seen.
    """
    (one_ends, other_ends), (one_left, other_left) = ends, map(_left, strands)
    width, mirrors = len(strands[1]) + 1, strands[0] == strands[1]
    goal = len(strands[0]) * width + width - 1
    reached: dict[int, float] = {0: 0.0}
    before: dict[int, tuple[int, bool]] = {}  # and whether the way ends at the mirror image
    seen = 0

    def least_s(point: int) -> float:
        i, j = divmod(point, width)
        (a, b), (c, d) = one_left[i], other_left[j]
        return reached[point] + (1 + slack) * max(a + c, b + d)

    ways_on = _ways_on(strands, ends)
    queue = [(0.0, 0.0, 0)]  # at least until the end, less what is done, and where
    while queue:
        _, done_s, point = heapq.heappop(queue)
        if point == goal:
            break
        if -done_s > reached[point]:
            continue
        seen += 1
        if slack and seen % _MOST_CORNERS == 0:
            slack *= _RAISED
            queue = [(least_s(p), -reached[p], p) for p in {p for _, _, p in queue}]
            heapq.heapify(queue)
        x, y = divmod(point, width)
        for i, j in ways_on(x, y):
            right, up = one_ends[i] - one_ends[x], other_ends[j] - other_ends[y]
            # of paths as long, one with a strand far ahead: an MLP's plan in 3.5 MB takes 4 % less
            there_s = (right if right > up else up) - done_s
            is_mirrored = mirrors and i > j
            if is_mirrored:
                i, j = j, i
            target = i * width + j
            if there_s < reached.get(target, math.inf):
                reached[target], before[target] = there_s, (point, is_mirrored)
                # `least_s` of it: calls would be a third of the whole
                (a, b), (c, d) = one_left[i], other_left[j]
                left_s = a + c if a + c > b + d else b + d
                heapq.heappush(queue, (there_s + (1 + slack) * left_s, -there_s, target))
    back: list[tuple[int, bool]] = []
    point = goal
    while point:
        source, is_mirrored = before[point]
        back.append((point, is_mirrored))
        point = source
    path, is_mirrored = [((0, 0), 0.0)], False
    for point, turns in reversed(back):
        is_mirrored ^= turns
        i, j = divmod(point, width)
        path.append(((j, i) if is_mirrored else (i, j), reached[point]))
    return path


def _left(strand: Strand) -> list[tuple[float, float]]:
    """Seconds on each queue of the tasks from each one on."""
    found = [(0.0, 0.0)]
    for queues, seconds in reversed(strand):
        one, other = found[-1]
        found.append((one + seconds * (queues & 1), other + seconds * (queues >> 1 & 1)))
    return found[::-1]


def _ways_on(
    strands: tuple[Strand, Strand], ends: Sequence[Sequence[float]]
) -> Callable[[int, int], Sequence[Point]]:
    """From a point both corners around the first rectangle on the diagonal, or the end."""
    (one_ends, other_ends), most = ends, (len(strands[0]), len(strands[1]))
    one, other = ([queues for queues, _ in strand] for strand in strands)

    def ways_on(i: int, j: int) -> Sequence[Point]:
        x, y = one_ends[i], other_ends[j]
        while i < most[0] and j < most[1]:
            if one[i] & other[j]:
                return (i, j + 1), (i + 1, j)
            left_x, left_y = one_ends[i + 1] - x, other_ends[j + 1] - y
            step = left_x if left_x < left_y else left_y
            if left_x <= left_y:
                i += 1
            if left_y <= left_x:
                j += 1
            x, y = x + step, y + step
        return (most,)

    return ways_on
