"""The bytes that a planned step requires of a device, which are held against the memory limit.

    required = max(peak of the executor, peak of the step that the back end compiles, if it can)

with the peaks of `memory_peak`, a sweep over the step's tape (`liveness`). A deep model is many
blocks that are planned alike, and the tape of such a block is that of its neighbours, later. So the
executor's peak is told by a step with four blocks of each such run (`executor_peak`): the bytes
held grow by the same f from one block in the middle to the next in the forward pass, and by the
same b, mostly less than nothing, in the backward pass, so with n blocks left out in the middle

    held at their forward pass     held before + i f          i = 1 .. n
    held at their backward pass    held before + n f + i b    i = 1 .. n

which is most at the first or the last i, and these are moments of their neighbours. All moments
between hold n f bytes more than in the short step, and those afterwards n (f + b). What is there
all the time, and what other micro-batches in flight hold, grows by as much for each block.

That the two blocks in the middle of the short step repeat is seen on its tape: an action changes
what is held by as many bytes, and hands on the same strides. Otherwise the whole step is written
down, as it is where buckets span more than two blocks. Without this a search for GPT-3 175B in the
memory of 128x8 devices takes twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..graph.graph import SOURCE_KINDS, Graph
from ..graph.regions import AlikeBlock, alike_blocks
from .exchange import Buckets, Exchange, Waits, exchanges, filling, leaving, passes
from .liveness import StepTape
from .memory_rules import MemoryRules
from .step_tensors import Key, PlannedStep
from .tape import Moment, Peak, Strand, aligned

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
        executor = executor_peak(plan, rules).bytes
    if executor > limit_bytes or not rules.compiles(plan):
        return executor
    return max(executor, rules.compiled_bytes(plan, executor))


def executor_peak(plan: PlannedStep, rules: MemoryRules) -> Peak:
    """As `memory_peak(plan, rules, "executor")`, sooner, but for its largest tensors."""
    return plan.once(_executor_peak, rules)


def _executor_peak(plan: PlannedStep, rules: MemoryRules) -> Peak:
    short, runs = _shortened(plan)
    if runs:
        with suppress(_Unlike):
            peaks = [_peak(step, runs) for step in fullest_passes(short, rules)]
            return max(peaks, key=lambda peak: peak.bytes)
    return replace(memory_peak(plan, rules, "executor"), largest=())


def bucket_room(plan: PlannedStep, rules: MemoryRules) -> float:
    """By how many bytes a plan with its buckets may exceed what it requires without, at most.

    That is if all gradients that travel in them were there at once beside what carries them: as
    they were made, laid out, and before and after the fullest step of their way with what that
    holds meanwhile. Where micro-batches are added up it is those that wait at the same moment, as a
    bucket takes the place of the sums, and what carries the largest bucket.
    """
    step = StepTape(plan, operators=rules.operators, in_flight=plan.again.in_flight)
    every, place_of = exchanges(plan.graph, plan.ops, plan.edges), passes(plan.graph)
    buckets, is_once = plan.buckets, plan.micro_batches == 1
    if plan.waits:
        places = leaving(plan.graph, every, buckets, plan.waits)
    else:
        places = filling(plan.graph, every, buckets)
    known: dict[Hashable, tuple[float, float]] = {}
    room, most = 0.0, 0.0
    more = np.zeros(len(place_of) + 1)  # bytes that wait from a backward pass on
    for bucket, place in zip(buckets, places, strict=True):
        carrying = 0.0
        for one in map(every.__getitem__, bucket):
            if one.is_often and not plan.waits:
                continue
            key = one.spec, one.given, one.steps  # equal blocks have the same ones
            if key not in known:
                known[key] = _carried(step, rules, one)
            made, carried = known[key]
            if is_once and not one.is_often:
                room += made + carried
                continue
            waiting = made + carried * one.is_often
            more[place_of[one.op]] += waiting
            more[place + 1] -= waiting
            carrying += carried * (not one.is_often)
        most = max(most, carrying)
    return float(aligned(step.ahead_bytes)) + room + most + float(more.cumsum().max())


def _carried(step: StepTape, rules: MemoryRules, one: Exchange) -> tuple[float, float]:
    """Bytes of a gradient as it is made and laid out, and most that is there on its way."""
    fullest = 0
    for way in step.way_of(one.given, one.steps):
        travel = step.travel_of(one.tensor, "", way)
        while_it_moves = rules.operators.moving_bytes(replace(travel, copied=travel.before))
        fullest = max(fullest, aligned(travel.after) + aligned(while_it_moves))
    return 2.0 * aligned(step.bytes_of(one.tensor, one.given)), 2.0 * fullest


@dataclass(frozen=True)
class _Run:
    """Of a run of blocks the `KEPT` ones, and how many others it has between them."""

    blocks: Sequence[AlikeBlock]
    left_out: int


def _shortened(plan: PlannedStep) -> tuple[PlannedStep, list[_Run]]:
    """`plan` without the middle of its runs of blocks that are planned alike."""
    runs: list[_Run] = []
    gone: set[str] = set()
    renamed: dict[str, str] = {}
    stands_for: dict[str, str] = {}  # operator that is left out -> the one that is in its place
    graph = plan.graph
    outputs = {op.name: op.outputs for op in graph.ops}
    for blocks in _planned_alike(plan):
        if len(blocks) <= KEPT:
            continue
        before, after = blocks[: KEPT // 2], blocks[-KEPT // 2 :]
        middle = blocks[KEPT // 2 : -KEPT // 2]
        gone.update(name for block in middle for name in (*block.ops, *block.own))
        for kept, left_out in zip(before[-1].ops, middle[-1].ops, strict=True):
            renamed.update(zip(outputs[left_out], outputs[kept], strict=True))
            stands_for[left_out] = kept
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
    short.__dict__["gradients"] = graph.gradients  # slow to find out, and the same
    edges = {key: edge for key, edge in plan.edges.items() if key[0] not in gone}
    buckets, waits = _without(plan, gone, stands_for)
    return replace(plan, graph=short, edges=edges, buckets=buckets, waits=waits), runs


def _without(
    plan: PlannedStep, gone: Container[str], stands_for: Mapping[str, str]
) -> tuple[Buckets, Waits]:
    """The buckets without the gradients of these operators, and how long they wait.

    Of buckets with gradients of two blocks, the one that leads into what is left out takes those
    that stand for these, and the one that leads out of it goes.
    """
    every = exchanges(plan.graph, plan.ops, plan.edges) if plan.buckets else ()
    number_of = {exchange.key: number for number, exchange in enumerate(every)}
    left = (number for number, exchange in enumerate(every) if exchange.op not in gone)
    now = {number: position for position, number in enumerate(left)}

    def of(bucket: Sequence[int]) -> tuple[int, ...]:
        kept = tuple(n for n in bucket if n in now)
        if len(kept) == len(bucket) or not kept:
            return kept
        if min(kept) < max(n for n in bucket if n not in now):
            return ()
        keys = ((stands_for.get(every[n].op, every[n].op), every[n].index) for n in bucket)
        return tuple(number_of[key] for key in keys)

    kept = [of(bucket) for bucket in plan.buckets]
    waits = tuple(wait for wait, bucket in zip(plan.waits, kept, strict=False) if bucket)
    return tuple(tuple(now[n] for n in bucket) for bucket in kept if bucket), waits


def _planned_alike(plan: PlannedStep) -> Iterator[list[AlikeBlock]]:
    """Runs of blocks, or of pairs of them, that read alike and are placed alike.

    All or none of a block is run again; what travels in a bucket with its gradients is its own, or
    that of a block beside it.
    """
    for run in alike_blocks(plan.graph):
        # of schemes whose blocks cost the same in two ways, plans alternate
        for count in (1, 2) if len(run) > KEPT else ():
            keys = _Keys(plan, list(_joined(run, count)))
            numbers = (list(same) for _, same in groupby(range(len(keys.blocks)), keys.of))
            found = [[keys.blocks[n] for n in same] for same in numbers]
            if any(len(blocks) > KEPT for blocks in found):
                yield from found
                break


class _Keys:
    """What the blocks of a run have in common that are planned alike."""

    def __init__(self, plan: PlannedStep, blocks: Sequence[AlikeBlock]):
        self.plan, self.blocks = plan, blocks
        self._beside, self._waits = _beside(plan), _waits(plan)
        inputs = {op.name: len(op.inputs) for op in plan.graph.ops}
        names = ((*block.own, *block.ops) for block in blocks)
        self._uses = [[(name, n) for name in own for n in range(inputs[name])] for own in names]
        self._at = {
            use: (number, place)  # the block and the place in it
            for number, uses in enumerate(self._uses if self._beside else ())
            for place, use in enumerate(uses)
        }

    def of(self, number: int) -> Hashable:
        plan, again = self.plan, self.plan.again
        block, uses = self.blocks[number], self._uses[number]
        edges = map(plan.edges.get, uses)
        steps = (None if e is None else (e.forward, e.backward, e.zero_stage) for e in edges)
        together = [self._places(number, self._beside[use]) for use in uses if use in self._beside]
        late = [self._waits[use] for use in uses if use in self._waits]
        number_of = {again.block_of.get(name) for name in block.ops}
        runs_again = sum(len(again.blocks[n]) for n in number_of if n is not None)
        apart = runs_again not in (0, len(block.ops)) or None in together
        return (
            block.ops if apart else runs_again,
            tuple(plan.ops[name] for name in (*block.own, *block.ops)),
            tuple(steps),
            tuple(together),
            tuple(late),
        )

    def _places(self, number: int, uses: Sequence[Key]) -> tuple[tuple[int, int], ...] | None:
        """Of what is in one bucket, how many blocks later it is, and where; None if it is far."""
        places: list[tuple[int, int]] = []
        for use in uses:  # of the whole model, where all travels in one bucket
            at = self._at.get(use)
            if at is None or abs(at[0] - number) > 1:
                return None
            places.append((at[0] - number, at[1]))
        return tuple(places)


def _joined(run: Sequence[AlikeBlock], count: int) -> Iterator[AlikeBlock]:
    """So many blocks that follow one another as one."""
    for n in range(0, len(run) - count + 1, count):
        part = run[n : n + count]
        ops, own = chain(*(b.ops for b in part)), chain(*(b.own for b in part))
        yield AlikeBlock(tuple(ops), tuple(own), part[0].key)


def _beside(plan: PlannedStep) -> dict[Key, list[Key]]:
    """Use of a parameter whose gradient travels in a bucket -> all uses of that bucket."""
    every = exchanges(plan.graph, plan.ops, plan.edges) if plan.buckets else ()
    found: dict[Key, list[Key]] = {}
    for bucket in plan.buckets:
        if plan.waits or not every[bucket[0]].is_often:  # else each is there by itself
            keys = [every[n].key for n in bucket]
            found.update((key, keys) for key in keys)
    return found


def _waits(plan: PlannedStep) -> dict[Key, int]:
    """Use of a parameter whose gradient travels in a bucket -> how long that waits."""
    every = exchanges(plan.graph, plan.ops, plan.edges) if plan.waits else ()
    pairs = zip(plan.buckets, plan.waits, strict=False)
    return {every[n].key: wait for bucket, wait in pairs for n in bucket}


class _Unlike(Exception):
    """Blocks that are planned alike do not do the same: a short step does not tell of the whole."""


def _peak(step: StepTape, runs: Sequence[_Run]) -> Peak:
    """The peak of the whole step, of which `step` is a part, to be built."""
    step.course_of = lambda strand: _Course(strand, runs).positions()
    step.build()
    course = _Course(step, runs)
    like = course.like
    always = Counter[str](step.tape.always)
    for run in runs:
        for cause, count in course.always(run.blocks[1]).items():
            always[cause] += run.left_out * count
    at = int(course.held.argmax())
    by_cause = Counter(always)
    by_cause["workspace"] += int(course.workspace[like[at]])
    for cause, changes in course.changes.items():
        by_cause[cause] += int(changes[like[: at + 1]].sum())
    moment = step.tape.actions[like[at]].name  # of no block that is left out, see above
    found = {cause: count for cause, count in by_cause.items() if count}
    return Peak(sum(found.values()), moment, found, dict(always))


class _Course:
    """What each action of a step does to the bytes that are held, by its tape.

    changes:   cause -> [actions] bytes more than at the action before, without workspaces
    workspace: [actions] bytes
    """

    def __init__(self, step: StepTape, runs: Sequence[_Run]):
        self.step, self.runs, tape = step, runs, step.tape
        self.changes = {
            cause: np.array(changes, dtype=np.int64) for cause, changes in tape.changes().items()
        }
        self.workspace: Ints = np.array([a.workspace for a in tape.actions], dtype=np.int64)
        self._at = {op.name: n for n, op in enumerate(step.plan.graph.ops)}
        if not all(map(self._repeats, runs)):
            raise _Unlike

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

    @cached_property
    def like(self) -> Ints:
        """Of each action of the whole step, the one here that it is like."""
        parts = [self.forward(run.blocks[2]) for run in self.runs]
        parts += [self.backward(run.blocks[1]) for run in self.runs]
        return self._repeated(len(self.workspace), parts)

    @cached_property
    def held(self) -> Ints:
        """Bytes at each action of the whole step, without what is there all the time."""
        changes = (changes[self.like].cumsum() for changes in self.changes.values())
        return sum(changes, self.workspace[self.like])

    def positions(self) -> Strand:
        """`StepTape.course` of the whole step."""
        short = self.step.course()
        done = short.done
        names = [op.name for op in self.step.plan.graph.ops if op.kind not in SOURCE_KINDS]
        at, end = {name: 2 * n + 1 for n, name in enumerate(names)}, len(done) + 1
        ends = [[(at[b.ops[0]], at[b.ops[-1]]) for b in run.blocks] for run in self.runs]
        parts = [range(own[2][0], own[2][1] + 2) for own in ends]
        parts += [range(end - own[1][1] - 2, end - own[1][0]) for own in ends]
        more = np.diff(done, prepend=0)[self._repeated(len(done), parts)]
        workspace, travels = self.workspace[self.like], np.array(short.travels, bool)[self.like]
        return Strand(
            self.held.tolist(), workspace.tolist(), travels.tolist(), more.cumsum().tolist()
        )

    def _repeated(self, count: int, parts: Sequence[range]) -> Ints:
        """0 .. count - 1 with those of each run's parts there for the blocks left out, too."""
        times = [run.left_out for run in self.runs] * 2
        pieces: list[Ints] = []
        at = 0
        for part, more in sorted(zip(parts, times, strict=True), key=lambda item: item[0].start):
            pieces += [np.arange(at, part.start), np.tile(np.array(part), more)]
            at = part.start
        return np.concatenate([*pieces, np.arange(at, count)])

    def always(self, block: AlikeBlock) -> Counter[str]:
        """Bytes for a block of what is there all the time, or is held for others in flight."""
        sums = [{}, *(counts for _, counts in self.step.marks)]
        end = 2 * len(self._at) - 1
        places = [self._at[name] for name in (*block.ops, *block.own)]
        found = Counter[str]()
        for n in (*places, *(end - place for place in places)):
            if sums[n + 1] != sums[n]:
                found.update(sums[n + 1])
                found.subtract(sums[n])
        found["in flight"] += self.step.held_for_others(self.forward(block))
        return found

    def _repeats(self, run: _Run) -> bool:
        """Whether the tape tells that what is left out does what the blocks around it do."""
        one, two = run.blocks[1:3]
        pairs = [(of(one), of(two)) for of in (self.forward, self.backward)]
        return (
            all(
                len(a) > 0 and np.array_equal(of[a.start : a.stop], of[b.start : b.stop])
                for a, b in pairs
                for of in (*self.changes.values(), self.workspace)
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
