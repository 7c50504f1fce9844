"""A planned step without the middle of its runs of equal blocks.

A stretch of operators repeats if each operator is planned as the one a period later is, and reads
what that one reads a period earlier, or the same from before the stretch. Of `count` such periods

    0, 1, 2 .. count - 3, count - 2, count - 1

the first two and the last two are kept; the last but one then reads from the second. What the
kept ones hold tells what the others would (`fullest`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from .planned_step import PlannedStep

KEPT = 4  # periods of a run, half of them at either end


@dataclass(frozen=True)
class Run:
    """Operators first .. first + count * period."""

    first: int
    period: int
    count: int

    @property
    def seam(self) -> int:
        """Where the operators that are left out begin."""
        return self.first + KEPT // 2 * self.period

    @property
    def left_out(self) -> int:
        """Periods."""
        return self.count - KEPT


@dataclass(frozen=True)
class Shortened:
    """plan: with what is left of `runs`, whose `first` counts the operators that are left."""

    plan: PlannedStep
    runs: tuple[Run, ...]


def shortened(plan: PlannedStep) -> Shortened:
    """`plan` without what its runs repeat; there may be none."""
    runs = _Repeats(plan).runs()
    if not runs:
        return Shortened(plan, ())
    graph, ops, left = plan.graph, [], []
    renamed: dict[str, str] = {}
    stop = 0
    for run in runs:
        ops += graph.ops[stop : run.seam]
        left.append(replace(run, first=len(ops) - KEPT // 2 * run.period))
        stop = run.seam + run.left_out * run.period
        here, there = (graph.ops[end - run.period : end] for end in (run.seam, stop))
        for kept, gone in zip(here, there, strict=True):
            renamed.update(zip(gone.outputs, kept.outputs, strict=True))
    ops += graph.ops[stop:]
    ops = [
        replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
        if any(name in renamed for name in op.inputs)
        else op
        for op in ops
    ]
    tensors = {name: graph.tensors[name] for op in ops for name in op.outputs}
    short = replace(graph, ops=tuple(ops), tensors=tensors)
    short.__dict__["gradients"] = graph.gradients  # the same names; slow to find out
    short.__dict__["_specs"] = dict(graph._specs)
    return Shortened(replace(plan, graph=short), tuple(left))


@dataclass(frozen=True)
class _Repeats:
    plan: PlannedStep

    def runs(self) -> list[Run]:
        """Runs long enough to be shortened, in order."""
        period = _likely_period(self.plan.graph)
        if period is None or len(self._ops) < (KEPT + 1) * period:
            return []
        alike, shared = self._alike(period)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
        found = []
        for start, stop in edges.reshape(-1, 2).tolist():
            first = next((n for n in range(start, stop) if not self._is_inside[n]), stop)
            run = Run(first, period, (stop - first) // period + 1)
            if run.count > KEPT and self._is_closed(run, shared):
                found.append(run)
        return found

    @property
    def _ops(self) -> Sequence[Op]:
        return self.plan.graph.ops

    @cached_property
    def _number(self) -> dict[str, int]:
        return {op.name: n for n, op in enumerate(self._ops)}

    @cached_property
    def _position(self) -> dict[str, int]:
        """Of the operator that makes a tensor."""
        return {name: n for n, op in enumerate(self._ops) for name in op.outputs}

    @cached_property
    def _place(self) -> list[int]:
        """[operators] number in its block that is run again; -1 for others."""
        place, sizes = [], [0] * len(self.plan.again.blocks)
        for op in self._ops:
            block = self.plan.again.block_of.get(op.name)
            place.append(-1 if block is None else sizes[block])
            if block is not None:
                sizes[block] += 1
        return place

    @cached_property
    def _is_inside(self) -> NDArray[np.bool_]:
        """[operators] whether a block that is run again has begun before it and not ended."""
        inside = np.zeros(len(self._ops), dtype=bool)
        for block in self.plan.again.blocks:
            inside[self._number[block[0]] + 1 : self._number[block[-1]] + 1] = True
        return inside

    def _alike(self, period: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether each operator is alike to the one a period later, and the last operator that

        makes something for both.
        """
        count = len(self._ops) - period
        alike, shared = np.zeros(count, dtype=bool), np.full(count, -1)
        for n, (one, two) in enumerate(zip(self._ops, self._ops[period:], strict=False)):
            last = self._reads_alike(one, two, period)
            if last is not None and self._place[n] == self._place[n + period]:
                alike[n], shared[n] = self._is_alike(one, two), last
        return alike, shared

    def _reads_alike(self, one: Op, two: Op, period: int) -> int | None:
        """The last operator that makes something for both; None if they read differently."""
        if one.kind != two.kind or len(one.inputs) != len(two.inputs):
            return None
        last = -1
        for before, after in zip(one.inputs, two.inputs, strict=True):
            position = self._position[before]
            if before == after:
                last = max(last, position)
            elif self._position[after] != position + period:
                return None
        return last

    def _is_alike(self, one: Op, two: Op) -> bool:
        """Whether two operators of a kind, as far as they make something, are planned alike."""
        graph, plan = self.plan.graph, self.plan
        if one.kind not in SOURCE_KINDS and one.attrs != two.attrs:
            return False
        if not _are_placed_alike(plan.ops[one.name], plan.ops[two.name]):
            return False
        for before, after in zip(one.outputs, two.outputs, strict=True):
            if (
                graph.tensors[before].spec != graph.tensors[after].spec
                or (before in graph.needs_grad) != (after in graph.needs_grad)
                or len(graph.consumers[before]) != len(graph.consumers[after])
            ):
                return False
        for index in range(len(one.inputs)):
            edges = plan.edges.get((one.name, index)), plan.edges.get((two.name, index))
            if edges != (None, None) and _steps(edges[0]) != _steps(edges[1]):
                return False
        return True

    def _is_closed(self, run: Run, shared: NDArray[np.int64]) -> bool:
        """Whether all but its ends is read only there and a period later."""
        first, period = run.first, run.period
        last = first + (run.count - 1) * period
        if shared[first:last].max() >= first or self._is_inside[first : last + 1 : period].any():
            return False
        end = last + period
        if end < len(self._ops) and self._is_inside[end]:
            return False
        for n in range(first + period, last):
            stop = n - (n - first) % period + 2 * period
            for name in self._ops[n].outputs:
                users = self.plan.graph.consumers[name]
                if any(self._number[user.name] >= stop for user, _ in users):
                    return False
        return True


def _are_placed_alike(one: PlannedOp, two: PlannedOp) -> bool:
    return (
        one.ins == two.ins
        and one.outs == two.outs
        and one.grad_outs == two.grad_outs
        and one.grad_ins == two.grad_ins
        and one.inner_axes == two.inner_axes
    )


def _steps(edge: PlannedEdge | None) -> Hashable:
    return None if edge is None else (edge.forward, edge.backward, edge.zero_stage)


def _likely_period(graph: Graph) -> int | None:
    """How far most operators are behind the one before them of their kind and shape."""
    last: dict[Hashable, int] = {}
    behind: dict[int, int] = {}
    for n, op in enumerate(graph.ops):
        key = op.kind, *(graph.tensors[name].spec.shape for name in op.outputs)
        if key in last:
            distance = n - last[key]
            behind[distance] = behind.get(distance, 0) + distance
        last[key] = n
    return max(behind, key=lambda distance: behind[distance], default=None)
