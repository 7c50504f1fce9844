"""Simulates a schedule: start and end of every action, idle time and peak memory of each stage.

A stage has one computation stream and one communication queue, both in the order of its list. With
overlap the two run in parallel; otherwise the list is one stream. A transfer blocks the queues of
both its stages while it lasts, as a blocking send and receive do. So everything starts at

    start(x) = max of the ends of what x depends on and of what precedes x in its streams

which one pass over the tasks in a valid order computes: `simulate`.

For equal stages and free transfers (s stages, m micro-batches, passes of f, b and w seconds):

    GPipe, 1F1B, eager 1F1B     (m + s - 1) (f + b + w)             bubble (s - 1) / (m + s - 1)
    interleaved, c chunks       m (f + b + w) + (s - 1)(f + b + w)/c
    ZB-H1                       m (f + b + w) + (s - 1)(f + b - w)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from .costs import Costs
from .orders import Action, peak_stash
from .schedule import Schedule
from .tasks import Pass, Task, actions_of, needs, task_of


@dataclass(frozen=True, slots=True)
class Span:
    """The start and end of one action of one stage."""

    stage: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated or measured iteration. A transfer has a span on both of its stages."""

    schedule: Schedule
    spans: tuple[Span, ...]

    @cached_property
    def makespan_s(self) -> float:
        return max((span.end_s for span in self.spans), default=0.0)

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
        """The fraction of the stages' time in which they do not compute."""
        whole = self.makespan_s * self.schedule.stages
        return 1 - sum(self.busy_s) / whole if whole else 0.0

    @cached_property
    def peak_stash(self) -> tuple[int, ...]:
        """Per stage, the most forward passes whose backward pass was not yet complete."""
        return tuple(int(peak_stash(actions)) for actions in self.schedule.actions)


def simulate(schedule: Schedule, costs: Costs, overlap: bool = True) -> Timeline:
    """Run `schedule` with `costs`. Raises ValueError if its stages deadlock."""
    ends: dict[Task, float] = {}
    free: dict[tuple[int, bool], float] = defaultdict(float)
    spans: list[Span] = []
    for task in sorted_tasks(schedule, overlap):
        is_pass = isinstance(task, Pass)
        who = list(actions_of(schedule, task))
        streams = [(stage, is_pass or not overlap) for stage, _ in who]
        start = max(
            *(free[stream] for stream in streams),
            *(ends[need] for need in needs(schedule, task)),
            0.0,
        )
        if isinstance(task, Pass):
            end = start + costs.seconds(task.kind, task.part)
        else:
            end = start + costs.transfer_s(task.direction, task.flow)
        ends[task] = end
        for stream in streams:
            free[stream] = end
        spans += [Span(stage, action, start, end) for stage, action in who]
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
