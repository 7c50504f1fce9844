"""Two strands of tasks on two resources: their best interleaving.

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
small part of the corners where one queue is nearly always busy.

HiDup (Zhang et al., "Accelerating Large-Scale Distributed Neural Network Training with SPMD
Parallelism", SoCC 2022, section 4.2) lets two halves of a batch take turns, stage by stage, in
lock-step. That is a path, too, so the shortest is never longer.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[int, int]  # how many tasks of each strand are done
Strand = Sequence[tuple[int, float]]  # (queues that it holds, as bits, and seconds) of each task


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

    slack: so much longer than the least it may take, relative; then far fewer corners are looked at
    ValueError unless every task takes time: one that takes none holds no queue.
    """
    strands = first, second
    if not all(seconds > 0 for strand in strands for _, seconds in strand):
        raise ValueError("every task of a strand takes time; leave those out that take none")
    ends = tuple([0.0, *itertools.accumulate(seconds for _, seconds in s)] for s in strands)
    left = tuple(map(_left, strands))
    goal = len(first), len(second)
    reached: dict[Point, float] = {(0, 0): 0.0}
    before: dict[Point, Point] = {}
    queue = [(0.0, 0.0, (0, 0))]  # at least until the end, less what is done, and where
    while queue:
        _, done_s, point = heapq.heappop(queue)
        at_s = -done_s
        if point == goal:
            break
        if at_s > reached[point]:
            continue
        for target in _ways_on(strands, ends, point):
            (x, y), (i, j) = point, target
            there_s = at_s + max(ends[0][i] - ends[0][x], ends[1][j] - ends[1][y])
            if there_s < reached.get(target, float("inf")):
                reached[target], before[target] = there_s, point
                (a, b), (c, d) = left[0][i], left[1][j]
                least_s = there_s + (1 + slack) * max(a + c, b + d)
                heapq.heappush(queue, (least_s, -there_s, target))
    starts: tuple[dict[int, float], dict[int, float]] = ({}, {})
    point = goal
    while point != (0, 0):
        source = before[point]
        for own, found, a, b in zip(ends, starts, source, point, strict=True):
            found.update({task: reached[source] + own[task] - own[a] for task in range(a, b)})
        point = source
    one, other = (tuple(found[n] for n in range(len(found))) for found in starts)
    return Interleaving(reached[goal], (one, other))


def _left(strand: Strand) -> list[tuple[float, float]]:
    """Seconds on each queue of the tasks from each one on."""
    found = [(0.0, 0.0)]
    for queues, seconds in reversed(strand):
        one, other = found[-1]
        found.append((one + seconds * (queues & 1), other + seconds * (queues >> 1 & 1)))
    return found[::-1]


def _ways_on(
    strands: tuple[Strand, Strand], ends: Sequence[Sequence[float]], point: Point
) -> tuple[Point, ...]:
    """Both corners around the first rectangle on the diagonal from `point`, or the end."""
    i, j = point
    x, y = ends[0][i], ends[1][j]
    while i < len(strands[0]) and j < len(strands[1]):
        left_x, left_y = ends[0][i + 1] - x, ends[1][j + 1] - y
        if strands[0][i][0] & strands[1][j][0]:
            return (i, j + 1), (i + 1, j)
        step = min(left_x, left_y)
        if left_x <= left_y:
            i += 1
        if left_y <= left_x:
            j += 1
        x, y = x + step, y + step
    return ((len(strands[0]), len(strands[1])),)
