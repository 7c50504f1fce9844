"""Simulates a schedule: start and end of every action, idle time and peak memory of each stage.

`run` is the one simulator, of pipelines and of the step of a mesh (`step`). Every device, or stage,
has a queue for its computation and one for its communication. A task holds one or several of them
while it lasts, in the order in which the tasks are given, and starts at

    start(x) = max of the ends of what x needs and of what precedes x in its queues

A stage of a pipeline has one computation stream and one communication queue, both in the order of
its list. With overlap the two run in parallel; otherwise the list is one stream. A transfer blocks
the queues of both its stages while it lasts, as a blocking send and receive do.

For equal stages and free transfers (s stages, m micro-batches, passes of f, b and w seconds):

    GPipe, 1F1B, eager 1F1B     (m + s - 1) (f + b + w)             bubble (s - 1) / (m + s - 1)
    interleaved, c chunks       m (f + b + w) + (s - 1)(f + b + w)/c
    ZB-H1                       m (f + b + w) + (s - 1)(f + b - w)

A schedule consists of tasks: a pass of one part, or a transfer between two stages. A task depends,
for

    F of part v:      on the activations of every flow (u, v), or F of u if u is on the same stage
    B of part u:      on F of u; the gradients of every flow (u, v), or B (joint: W) of v
    W of part v:      on B of v
    activations u>v:  on F of u            gradients u>v:  on B of v, and W of v if they run jointly
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .orders import Action, peak_stash
from .schedule import Costs, Flow, Schedule


@dataclass(frozen=True, slots=True)
class Queued:
    """A task as its queues know it.

    needs: numbers of tasks that must have ended, beside those before it in its `queues`
    """

    seconds: float
    queues: tuple[int, ...]
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slowdown:
    """By how much of its seconds each takes longer, while a device computes and communicates."""

    computation: float = 0.0
    communication: float = 0.0

    def __bool__(self) -> bool:
        return self.computation > 0 or self.communication > 0


def run(
    tasks: Sequence[Queued], slowdown: Slowdown = Slowdown()
) -> tuple[list[float], list[float]]:
    """The start and end of each task, in seconds; in the queues they stand in the order given.

    slowdown: of the tasks of one device, whose queue 0 is that of computation and 1 the other
    ValueError if a task needs one that comes after it, which no order of the queues allows for.
    """
    if slowdown:
        return _run_slowed(tasks, slowdown)
    free: dict[int, float] = {}
    starts: list[float] = []
    ends: list[float] = []
    for number, task in enumerate(tasks):
        start = 0.0
        for queue in task.queues:
            start = max(start, free.get(queue, 0.0))
        for need in task.needs:
            if need >= number:
                raise ValueError(f"task {number} needs {need}, which does not come before")
            start = max(start, ends[need])
        starts.append(start)
        ends.append(start + task.seconds)
        for queue in task.queues:
            free[queue] = ends[-1]
    return starts, ends


def _run_slowed(tasks: Sequence[Queued], slowdown: Slowdown) -> tuple[list[float], list[float]]:
    """From one start or end to the next: of two tasks at once, each has a part of its speed."""
    queues = [deque(n for n, task in enumerate(tasks) if q in task.queues) for q in (0, 1)]
    left = [task.seconds for task in tasks]
    starts, ends = [0.0] * len(tasks), [math.inf] * len(tasks)
    now = 0.0
    while any(queues):
        first = {n for queue in queues if queue for n in (queue[0],)}
        running = {
            n: 1.0
            for n in first
            if all(queues[q][0] == n for q in tasks[n].queues)
            and all(ends[need] <= now for need in tasks[n].needs)
        }
        if not running:
            raise ValueError(f"task {min(first)} needs one that does not come before")
        if len(running) > 1:
            for n in running:
                computes = 0 in tasks[n].queues
                running[n] += slowdown.computation if computes else slowdown.communication
        next_s = min(left[n] * times for n, times in running.items())
        for n, times in running.items():
            if left[n] == tasks[n].seconds:
                starts[n] = now
            left[n] = 0.0 if left[n] * times <= next_s else left[n] - next_s / times
            if not left[n]:
                ends[n] = now + next_s
                for q in tasks[n].queues:
                    queues[q].popleft()
        now += next_s
    return starts, ends


@dataclass(frozen=True, slots=True)
class Pass:
    """`kind` F, B or W of micro-batch `micro_batch` through `part`."""

    kind: str
    part: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """`direction` F: activations from flow[0] to flow[1]; B: gradients from flow[1] to flow[0]."""

    direction: str
    flow: Flow
    micro_batch: int

    @property
    def sender(self) -> int:
        """The part that sends."""
        return self.flow[0] if self.direction == "F" else self.flow[1]

    @property
    def receiver(self) -> int:
        return self.flow[1] if self.direction == "F" else self.flow[0]

    def __str__(self) -> str:
        return f"{self.direction}{self.micro_batch} {self.sender}>{self.receiver}"


Task = Pass | Transfer


def task_of(schedule: Schedule, stage: int, action: Action) -> Task:
    """The task that `action` of `stage` performs or takes part in."""
    part = schedule.part(stage, action.chunk)
    if action.is_compute:
        return Pass(action.kind, part, action.micro_batch)
    peer = schedule.part(action.peer, action.peer_chunk)
    flow = (min(part, peer), max(part, peer))
    return Transfer(action.kind[1], flow, action.micro_batch)


def actions_of(schedule: Schedule, task: Task) -> Iterator[tuple[int, Action]]:
    """The (stage, action) pairs that take part in `task`, sender first."""
    if isinstance(task, Pass):
        chunk, stage = divmod(task.part, schedule.stages)
        yield stage, Action(task.kind, task.micro_batch, chunk)  # type: ignore[arg-type]
        return
    ends = task.sender, task.receiver
    for kind, part, peer in (("S", *ends), ("R", *reversed(ends))):
        chunk, stage = divmod(part, schedule.stages)
        peer_chunk, peer_stage = divmod(peer, schedule.stages)
        yield (
            stage,
            Action(
                f"{kind}{task.direction}",  # type: ignore[arg-type]
                task.micro_batch,
                chunk,
                peer_stage,
                peer_chunk,
            ),
        )


def stages_of(schedule: Schedule, task: Task) -> tuple[int, ...]:
    if isinstance(task, Pass):
        return (schedule.stage_of(task.part),)
    return schedule.stage_of(task.sender), schedule.stage_of(task.receiver)


def all_tasks(schedule: Schedule) -> Iterator[Task]:
    """All tasks of an iteration, micro-batch by micro-batch."""
    for m in range(schedule.micro_batches):
        for part in range(schedule.parts):
            for kind in "FBW":
                yield Pass(kind, part, m)
        for flow in schedule.flows:
            if schedule.crosses(flow):
                yield Transfer("F", flow, m)
                yield Transfer("B", flow, m)


def needs(schedule: Schedule, task: Task) -> Iterator[Task]:
    """The dependencies of `task`; see the module's docstring."""
    m = task.micro_batch
    last = "W" if schedule.joint else "B"
    if isinstance(task, Transfer):
        yield Pass("F" if task.direction == "F" else last, task.sender, m)
        return
    part = task.part
    if task.kind == "F":
        for u in schedule.sources[part]:
            flow = (u, part)
            yield Transfer("F", flow, m) if schedule.crosses(flow) else Pass("F", u, m)
    elif task.kind == "B":
        yield Pass("F", part, m)
        for v in schedule.targets[part]:
            flow = (part, v)
            yield Transfer("B", flow, m) if schedule.crosses(flow) else Pass(last, v, m)
    else:
        yield Pass("B", part, m)


@dataclass(frozen=True, slots=True)
class Span:
    """The start and end of one action of one stage."""

    stage: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a stage exchanges once an iteration: the start and end of `what`.

    After its passes, or beside the last one.
    """

    stage: int
    part: int
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated or measured iteration. A transfer has a span on both of its stages."""

    schedule: Schedule
    spans: tuple[Span, ...]
    exchanges: tuple[Exchange, ...] = ()

    @cached_property
    def makespan_s(self) -> float:
        """Of the passes."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def iteration_s(self) -> float:
        """Until the last pass and the last exchange are done."""
        return max((self.makespan_s, *(exchange.end_s for exchange in self.exchanges)))

    def then(self, once: Iterable[tuple[int, str, float, float]]) -> Timeline:
        """With what each part exchanges: (part, what, seconds after the passes, and before)."""
        ends = [0.0] * self.schedule.stages
        for span in self.spans:
            ends[span.stage] = max(ends[span.stage], span.end_s)
        found: list[Exchange] = []
        for part, what, seconds, before in once:
            if seconds + before > 0:
                stage = self.schedule.stage_of(part)
                start, end = ends[stage] - before, ends[stage] + seconds
                found.append(Exchange(stage, part, what, start, end))
                ends[stage] = end
        return replace(self, exchanges=tuple(found))

    def together(self, what: str, each: Iterable[Mapping[int, float]]) -> Timeline:
        """With what parts exchange with each other (part -> seconds), once all are done."""
        ends = [0.0] * self.schedule.stages
        for own in (*self.spans, *self.exchanges):
            ends[own.stage] = max(ends[own.stage], own.end_s)
        found = list(self.exchanges)
        for seconds in each:
            start = max(ends[self.schedule.stage_of(part)] for part in seconds)
            for part, own_s in seconds.items():
                stage = self.schedule.stage_of(part)
                begin = max(start, ends[stage])
                ends[stage] = begin + own_s
                found.append(Exchange(stage, part, what, begin, ends[stage]))
        return replace(self, exchanges=tuple(found))

    @cached_property
    def busy_s(self) -> tuple[float, ...]:
        """Per stage, the seconds in which it computes."""
        busy = [0.0] * self.schedule.stages
        for span in self.spans:
            if span.action.is_compute:
                busy[span.stage] += span.end_s - span.start_s
        return tuple(busy)

    @property
    def bubble(self) -> float:
        """The fraction of the stages' time until the last pass in which they do not compute."""
        whole = self.makespan_s * self.schedule.stages
        return 1 - sum(self.busy_s) / whole if whole else 0.0

    @cached_property
    def peak_stash(self) -> tuple[int, ...]:
        """Per stage, the most forward passes whose backward pass was not yet complete."""
        return tuple(int(peak_stash(actions)) for actions in self.schedule.actions)


def simulate(schedule: Schedule, costs: Costs, overlap: bool = True) -> Timeline:
    """Run `schedule` with `costs`. Raises ValueError if its stages deadlock."""
    order = sorted_tasks(schedule, overlap)
    number_of = {task: number for number, task in enumerate(order)}
    ends = [list(actions_of(schedule, task)) for task in order]
    tasks: list[Queued] = []
    for task, who in zip(order, ends, strict=True):
        if isinstance(task, Pass):
            seconds = costs.seconds(task.kind, task.part)
        else:
            seconds = costs.transfer_s(task.direction, task.flow)
        kind = overlap and not isinstance(task, Pass)
        held = tuple(2 * stage + kind for stage, _ in who)
        wanted = tuple(number_of[need] for need in needs(schedule, task))
        tasks.append(Queued(seconds, held, wanted))
    spans = [
        Span(stage, action, start, end)
        for who, start, end in zip(ends, *run(tasks), strict=True)
        for stage, action in who
    ]
    return Timeline(schedule, tuple(sorted(spans, key=lambda s: (s.start_s, s.end_s, s.stage))))


class Deadlock(ValueError):
    """Stages that wait for each other; `waits` names the first action of each stage's streams."""

    def __init__(self, waits: dict[int, list[str]]) -> None:
        self.waits = waits
        text = "; ".join(f"stage {i} at {', '.join(w)}" for i, w in sorted(waits.items()))
        super().__init__(f"the schedule deadlocks: {text}")


def sorted_tasks(schedule: Schedule, overlap: bool = True) -> list[Task]:
    """The tasks in an order in which each follows all that it waits for. Raises Deadlock.

    A task can run if it is first in the streams of all its stages and its dependencies are done.
    Running a task early never blocks another one, so if this gets stuck, every execution does.
    """
    streams: dict[tuple[int, bool], list[Task]] = defaultdict(list)
    for stage, actions in enumerate(schedule.actions):
        for action in actions:
            streams[stage, action.is_compute or not overlap].append(
                task_of(schedule, stage, action)
            )
    heads = dict.fromkeys(streams, 0)
    homes: dict[Task, list[tuple[int, bool]]] = defaultdict(list)
    for key, tasks in streams.items():
        for task in tasks:
            homes[task].append(key)
    done: set[Task] = set()
    order: list[Task] = []
    waiting: dict[Task, list[tuple[int, bool]]] = defaultdict(list)
    work = list(streams)
    while work:
        key = work.pop()
        at, tasks = heads[key], streams[key]
        if at == len(tasks):
            continue
        task = tasks[at]
        keys = homes[task]
        wanted = 1 if isinstance(task, Pass) else 2
        if len(keys) != wanted or any(streams[k][heads[k]] != task for k in keys):
            continue
        missing = [need for need in needs(schedule, task) if need not in done]
        if missing:
            waiting[missing[0]].append(key)
            continue
        done.add(task)
        order.append(task)
        for k in keys:
            heads[k] += 1
        work += [*waiting.pop(task, []), *keys]
    stuck: dict[int, list[str]] = defaultdict(list)
    for key, at in heads.items():
        stage, tasks = key[0], streams[key]
        if at < len(tasks):
            action = next(a for i, a in actions_of(schedule, tasks[at]) if i == stage)
            stuck[stage].append(str(action))
    if stuck:
        raise Deadlock(dict(stuck))
    return order
