"""The bytes that a planned step requires of a device, which are held against the memory limit.

    required = max(peak of the executor, peak of the step that the back end compiles, if it can)

with the peaks of `memory_peak`, a sweep over the step's tape (`liveness`). A deep model is many
blocks that are planned alike, and the tape of such a block is that of its neighbours, later. So the
executor's peak is told by a step with four blocks of each such run (`_shortened`): the bytes held
grow by the same f from one block in the middle to the next in the forward pass, and by the same b,
mostly less than nothing, in the backward pass, so with n blocks left out in the middle

    held at their forward pass     held before + i f          i = 1 .. n
    held at their backward pass    held before + n f + i b    i = 1 .. n

which is most at the first or the last i, and these are moments of their neighbours. All moments
between hold n f bytes more than in the short step, and those afterwards n (f + b). What is there
all the time, and what other micro-batches in flight hold, grows by as much for each block.

That the two blocks in the middle of the short step repeat is seen on its tape: each action changes
what is held by as many bytes, and hands on the same strides. Otherwise the whole step is written
down. Without this a search for GPT-3 175B in the memory of 128x8 devices takes twice as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import Graph
from ..graph.regions import AlikeBlock, alike_blocks
from .exchange import exchanges
from .liveness import StepTape
from .memory_rules import MemoryRules
from .step_tensors import PlannedStep
from .tape import Moment, Peak, aligned

KEPT = 4  # blocks of a run: two at either end, as what is at an end may differ from the middle
Ints = NDArray[np.int64]
Runtime = Literal["graph", "executor"]
RUNTIMES: tuple[Runtime, ...] = ("graph", "executor")


def memory_peak(plan: PlannedStep, rules: MemoryRules, runtime: Runtime = "graph") -> Peak:
    """What one device holds at most; of an unknown runtime a ValueError.

    runtime: autoddl's "executor", or "graph" for the step that the back end compiles
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"unknown runtime {runtime!r}; use one of {', '.join(RUNTIMES)}")
    if runtime == "graph":
        return rules.compiled_peak(plan)
    peaks = (step.build().sweep() for step in fullest_passes(plan, rules))
    return max(peaks, key=lambda peak: peak.bytes)


def memory_course(plan: PlannedStep, rules: MemoryRules) -> list[Moment]:
    """What one device holds at each operator of a step, as autoddl's executor runs it."""
    return max(
        (step.build().course() for step in fullest_passes(plan, rules)),
        key=lambda course: max((moment.bytes for moment in course), default=0),
    )


def fullest_passes(plan: PlannedStep, rules: MemoryRules) -> Iterator[StepTape]:
    """To be built; where all micro-batches are in flight, the first and the second.

    The first backward pass there finds all of them, but no sums of gradients yet. In turns the
    second follows closely, and is counted with the first; what is then left is the end of a step.
    """
    flight = plan.again.in_flight
    if not ((plan.graph.is_stage or plan.turns) and flight == plan.micro_batches > 1):
        yield StepTape(plan, operators=rules.operators, in_flight=flight)
        return
    yield StepTape(plan, operators=rules.operators, in_flight=flight, is_first=True)
    last = flight - 1 if plan.graph.is_stage else 1
    yield StepTape(replace(plan, turns=()), operators=rules.operators, in_flight=last)


def required_bytes(
    plan: PlannedStep, rules: MemoryRules, limit_bytes: float, executor: int | None = None
) -> int:
    """Bytes of a device that a plan needs; if the executor alone exceeds the limit, its bytes.

    executor: what that holds, if it is known
    """
    if executor is None:
        executor = executor_bytes(plan, rules)
    if executor > limit_bytes or not rules.compiles(plan):
        return executor
    return max(executor, rules.compiled_bytes(plan))


def executor_bytes(plan: PlannedStep, rules: MemoryRules) -> int:
    """As `memory_peak(plan, rules, "executor").bytes`, of a step with few of its equal blocks."""
    short, runs = _shortened(plan)
    if runs:
        found = [_bytes(step, runs) for step in fullest_passes(short, rules)]
        if None not in found:
            return max(count for count in found if count is not None)
    return memory_peak(plan, rules, "executor").bytes


def bucket_room(plan: PlannedStep, rules: MemoryRules) -> float:
    """By how many bytes a plan with its buckets may exceed what it requires without, at most.

    That is if all gradients that travel in them were there at once beside what carries them: as
    they were made, laid out, and after each way with what that holds meanwhile.
    """
    step = StepTape(plan, operators=rules.operators, in_flight=plan.again.in_flight)
    known: dict[Hashable, float] = {}
    room = float(aligned(step.ahead_bytes))
    for one in exchanges(plan.graph, plan.ops, plan.edges):
        if one.is_often:
            continue
        key = one.spec, one.given, one.steps  # equal blocks have the same ones
        if key not in known:
            given = step.bytes_of(one.tensor, one.given)
            known[key] = 2 * aligned(given)
            for way in step.way_of(one.given, one.steps):
                travel = step.travel_of(one.tensor, "", way)
                while_it_moves = rules.operators.moving_bytes(replace(travel, copied=travel.before))
                known[key] += aligned(travel.after) + aligned(while_it_moves)
        room += known[key]
    return room


@dataclass(frozen=True)
class _Run:
    """Of a run of blocks the `KEPT` ones, and how many others it has between them."""

    blocks: Sequence[AlikeBlock]
    left_out: int


def _shortened(plan: PlannedStep) -> tuple[PlannedStep, list[_Run]]:
    """`plan` without the middle of its runs of blocks that are planned alike.

    None is left out where buckets or turns go across blocks.
    """
    runs: list[_Run] = []
    gone: set[str] = set()
    renamed: dict[str, str] = {}
    graph = plan.graph
    outputs = {op.name: op.outputs for op in graph.ops}
    for blocks in [] if plan.buckets or plan.turns else _planned_alike(plan):
        if len(blocks) <= KEPT:
            continue
        before, after = blocks[: KEPT // 2], blocks[-KEPT // 2 :]
        middle = blocks[KEPT // 2 : -KEPT // 2]
        gone.update(name for block in middle for name in (*block.ops, *block.own))
        for kept, left_out in zip(before[-1].ops, middle[-1].ops, strict=True):
            renamed.update(zip(outputs[left_out], outputs[kept], strict=True))
        runs.append(_Run((*before, *after), len(middle)))
    if not runs:
        return plan, []
    ops = [
        replace(op, inputs=tuple(renamed.get(name, name) for name in op.inputs))
        for op in graph.ops
        if op.name not in gone
    ]
    tensors = {name: graph.tensors[name] for op in ops for name in op.outputs}
    short: Graph = replace(graph, ops=tuple(ops), tensors=tensors)
    return replace(plan, graph=short), runs


def _planned_alike(plan: PlannedStep) -> list[list[AlikeBlock]]:
    """Runs of blocks that read alike and are placed alike; all or none is run again."""
    inputs = {op.name: len(op.inputs) for op in plan.graph.ops}
    again = plan.again

    def key(block: AlikeBlock) -> Hashable:
        names = *block.own, *block.ops
        of = {again.block_of.get(name) for name in block.ops}
        number = of.pop()
        whole = not of and (number is None or len(again.blocks[number]) == len(block.ops))
        edges = [plan.edges.get((name, n)) for name in names for n in range(inputs[name])]
        steps = (None if e is None else (e.forward, e.backward, e.zero_stage) for e in edges)
        return (
            number is None if whole else block.ops,
            tuple(plan.ops[name] for name in names),
            tuple(steps),
        )

    return [list(same) for run in alike_blocks(plan.graph) for _, same in groupby(run, key)]


def _bytes(step: StepTape, runs: Sequence[_Run]) -> int | None:
    """The peak of the whole step, of which `step` is a part; None if that does not tell it."""
    moments = _Moments(step)
    held, always = moments.held.copy(), sum(step.tape.always.values())
    for run in runs:
        if not moments.repeats(run):
            return None
        one, two = (moments.forward(run.blocks[n]) for n in (1, 2))
        held[two.start :] += run.left_out * (moments.held[two.start] - moments.held[one.start])
        two, one = (moments.backward(run.blocks[n]) for n in (2, 1))
        held[one.start :] += run.left_out * (moments.held[one.start] - moments.held[two.start])
        always += run.left_out * moments.always(run.blocks[1])
    return int((held + moments.workspace).max(initial=0)) + always


class _Moments:
    """Of the tape of a step: what is held at each action.

    held, workspace: [actions] bytes, without what is there all the time
    """

    def __init__(self, step: StepTape):
        self.step, self.tape = step, step.build()
        self.workspace: Ints = np.array([a.workspace for a in self.tape.actions], dtype=np.int64)
        self.held: Ints = np.array(self.tape.held(), dtype=np.int64) - self.workspace
        self._at = {op.name: n for n, op in enumerate(step.plan.graph.ops)}

    @cached_property
    def _ends(self) -> list[int]:
        """Actions after each operator's passes, and 0 before the first one."""
        return [*(count for count, _ in self.step.marks), 0]

    def forward(self, block: AlikeBlock) -> range:
        """The actions of a block's forward pass."""
        first, last = self._at[block.ops[0]], self._at[block.ops[-1]]
        return range(self._ends[first - 1], self._ends[last])

    def backward(self, block: AlikeBlock) -> range:
        """The actions of a block's backward pass, and of its second forward pass before it."""
        end = 2 * len(self._at) - 1
        first, last = end - self._at[block.ops[-1]], end - self._at[block.ops[0]]
        return range(self._ends[first - 1], self._ends[last])

    def always(self, block: AlikeBlock) -> int:
        """Bytes for a block of what is there all the time, or is held for others in flight."""
        sums = [0, *(count for _, count in self.step.marks)]
        end = 2 * len(self._at) - 1
        places = [self._at[name] for name in (*block.ops, *block.own)]
        passes = (*places, *(end - place for place in places))
        held = self.step.held_for_others(self.forward(block))
        return sum(sums[n + 1] - sums[n] for n in passes) + held

    def repeats(self, run: _Run) -> bool:
        """Whether the tape tells that what is left out does what the blocks around it do."""
        one, two = run.blocks[1:3]
        pairs = [(of(one), of(two)) for of in (self.forward, self.backward)]
        changes = np.diff(self.held, prepend=0)
        return (
            all(
                len(a) > 0 and np.array_equal(of[a.start : a.stop], of[b.start : b.stop])
                for a, b in pairs
                for of in (changes, self.workspace)
            )
            and self.always(one) == self.always(two)
            and self._strides(one) == self._strides(two)
        )

    def _strides(self, block: AlikeBlock) -> list[Hashable]:
        """Of what a block hands on: of its outputs, also when made again, and their gradients."""
        step, ops = self.step, self.step.plan.graph.ops
        return [
            step.strides.get(name)
            for op in block.ops
            for tensor in ops[self._at[op]].outputs
            for name in (tensor, step.value(tensor), step.arrived.get(tensor, ""))
        ]
