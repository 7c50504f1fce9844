"""Makes a schedule by name, and proves that one is valid before anything runs.

make_schedule("1f1b", stages=4, micro_batches=8)

Sends and receives are added in one global order that cannot deadlock. The computation of every
stage is simulated with given costs; whenever both ends of a transfer are free, the transfer that
has waited longest takes place. The simulation yields one global order of all events. Every stage's
list is its part of that order, so the first event that has not happened can always proceed: no two
stages can wait for each other, even though each stage has one queue for all its transfers, and even
if computation and communication share one thread.

`verify` checks for every schedule, made here or read from a file:

    once      every stage does each F, B and W of its parts once, and sends and receives each
              transfer of its flows once; nothing else
    stash     no stage ever stores more forward passes than it declares
    joint     if the halves of a backward pass run as one, nothing lies between them
    order     every pass follows its dependencies, and every queue can be completed: executed with
              each stage's transfers as one first-in-first-out queue in which a send and its
              receive meet. Running early never blocks another task, so one execution proves all

The last check is also made with computation and communication in one stream, unless `overlap` is
set.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from .orders import orders_of, peak_stash
from .schedule import Costs, Flow, Schedule, chain, check_flows
from .simulate import (
    Pass,
    Task,
    Transfer,
    actions_of,
    all_tasks,
    needs,
    sorted_tasks,
    stages_of,
    task_of,
)


def make_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    chunks: int = 1,
    delay: int | None = None,
    flows: Iterable[Flow] | None = None,
    costs: Costs | None = None,
    overlap: bool = True,
) -> Schedule:
    """The schedule `name` (one of `orders.SCHEDULES`) for `stages` stages.

    chunks: parts of the model on every stage; only interleaved schedules have more than one
    delay:  how late the weight half of a backward pass runs (see `orders`); None: not separate
    flows:  between which parts tensors travel; None: between neighbours
    costs:  by which the transfers are ordered; None: equal passes and free transfers

    Raises ValueError if the name is unknown or the numbers do not fit.
    """
    orders = orders_of(name, stages, micro_batches, chunks, delay)
    parts = stages * chunks
    checked = chain(parts) if flows is None else check_flows(flows, parts)
    schedule = Schedule(
        name,
        micro_batches,
        chunks,
        delay is None and name != "zb-h1",
        checked,
        tuple(o.stash for o in orders),
        tuple(o.actions for o in orders),
    )
    return with_transfers(schedule, costs or Costs.uniform(parts, checked), overlap)


def with_transfers(schedule: Schedule, costs: Costs, overlap: bool = True) -> Schedule:
    """`schedule` with transfers ordered by a simulation with `costs`; old transfers are dropped.

    overlap: a stage may compute while it communicates
    Raises ValueError if the stages' orders of computation cannot be completed.
    """
    lists: list[list] = [[] for _ in range(schedule.stages)]
    for task in run_order(schedule, costs, overlap):
        for stage, action in actions_of(schedule, task):
            lists[stage].append(action)
    return dataclasses.replace(schedule, actions=tuple(map(tuple, lists)))


def run_order(schedule: Schedule, costs: Costs, overlap: bool) -> list[Task]:
    """All tasks in the order in which they start; see the module's docstring."""
    return _Run(schedule, costs, overlap).run()


class _Run:
    def __init__(self, schedule: Schedule, costs: Costs, overlap: bool) -> None:
        self.schedule = schedule
        self.costs = costs
        self.overlap = overlap
        self.queues: list[list[Pass]] = [_passes(schedule, i) for i in range(schedule.stages)]
        self.next = [0] * schedule.stages
        self.computing = [False] * schedule.stages
        self.communicating = [False] * schedule.stages
        self.missing: dict[Task, int] = {}
        self.waiting: dict[Task, list[Task]] = defaultdict(list)
        for task in all_tasks(schedule):
            wanted = list(needs(schedule, task))
            self.missing[task] = len(wanted)
            for need in wanted:
                self.waiting[need].append(task)
        # Per stage, its transfers that only wait for free ends: (since, gradients first, ...).
        self.ready: list[dict[Transfer, tuple]] = [{} for _ in range(schedule.stages)]
        self.events: list[tuple[float, int, Task]] = []
        self.started: list[Task] = []

    def run(self) -> list[Task]:
        now = 0.0
        touched = set(range(self.schedule.stages))
        while True:
            self._start(now, touched)
            if not self.events:
                break
            now = self.events[0][0]
            touched = set()
            while self.events and self.events[0][0] == now:
                touched |= self._finish(heapq.heappop(self.events)[2], now)
        if len(self.started) != len(self.missing):
            stuck = {
                stage: str(queue[at].kind) + str(queue[at].micro_batch)
                for stage, (queue, at) in enumerate(zip(self.queues, self.next, strict=True))
                if at < len(queue)
            }
            raise ValueError(f"the order of computation cannot be completed: stuck at {stuck}")
        return self.started

    def _finish(self, task: Task, now: float) -> set[int]:
        """Release the task's stages and its dependents; returns the stages that may proceed."""
        touched = set(stages_of(self.schedule, task))
        for stage in touched:
            if isinstance(task, Pass):
                self.computing[stage] = False
            else:
                self.communicating[stage] = False
        for waiter in self.waiting[task]:
            self.missing[waiter] -= 1
            ends = stages_of(self.schedule, waiter)
            touched.update(ends)
            if isinstance(waiter, Transfer) and not self.missing[waiter]:
                key = (now, waiter.direction != "B", waiter.micro_batch, waiter.flow)
                for stage in ends:
                    self.ready[stage][waiter] = key
        return touched

    def _start(self, now: float, touched: set[int]) -> None:
        candidates = {(key, t) for stage in touched for t, key in self.ready[stage].items()}
        for _, transfer in sorted(candidates, key=lambda item: item[0]):
            ends = stages_of(self.schedule, transfer)
            if any(self.communicating[i] or not self._free(i) for i in ends):
                continue
            for stage in ends:
                self.communicating[stage] = True
                del self.ready[stage][transfer]
            self._push(transfer, now + self.costs.transfer_s(transfer.direction, transfer.flow))
        for stage in sorted(touched):
            queue, at = self.queues[stage], self.next[stage]
            if at == len(queue) or self.computing[stage] or not self._free(stage):
                continue
            task = queue[at]
            if not self.missing.get(task, 1):
                self.next[stage] += 1
                self.computing[stage] = True
                self._push(task, now + self.costs.seconds(task.kind, task.part))

    def _free(self, stage: int) -> bool:
        """True unless the stage's single thread is busy with the other of its two queues."""
        return self.overlap or not (self.computing[stage] or self.communicating[stage])

    def _push(self, task: Task, end: float) -> None:
        heapq.heappush(self.events, (end, len(self.started), task))
        self.started.append(task)


def _passes(schedule: Schedule, stage: int) -> list[Pass]:
    tasks: Sequence[Task] = [task_of(schedule, stage, a) for a in schedule.compute(stage)]
    return [t for t in tasks if isinstance(t, Pass)]


def verify(schedule: Schedule, overlap: bool = False) -> None:
    """Raise ValueError (`Deadlock` for stages that wait for each other) if it is not valid.

    overlap: it will only be run with computation and communication on separate threads
    """
    _check_form(schedule)
    _check_once(schedule)
    _check_stash(schedule)
    if schedule.joint:
        _check_joint(schedule)
    sorted_tasks(schedule, overlap=True)
    if not overlap:
        sorted_tasks(schedule, overlap=False)


def _check_form(schedule: Schedule) -> None:
    if len(schedule.stash) != schedule.stages:
        raise ValueError(
            f"the schedule promises a stash for {len(schedule.stash)} stages of {schedule.stages}"
        )
    for u, v in schedule.flows:
        if not 0 <= u < v < schedule.parts:
            raise ValueError(f"flow {u}>{v} does not lead to a later one of {schedule.parts} parts")


def _check_once(schedule: Schedule) -> None:
    wanted = Counter(pair for task in all_tasks(schedule) for pair in actions_of(schedule, task))
    found = Counter(
        (stage, action) for stage, actions in enumerate(schedule.actions) for action in actions
    )
    for (stage, action), times in (wanted - found).items():
        has = found[stage, action]
        raise ValueError(f"stage {stage} does {action} {has} times instead of {times + has}")
    for (stage, action), times in (found - wanted).items():
        has = times + wanted[stage, action]
        what = f"{has} times instead of once" if wanted[stage, action] else "but has no such task"
        raise ValueError(f"stage {stage} does {action} {what}")


def _check_stash(schedule: Schedule) -> None:
    for stage, promised in enumerate(schedule.stash):
        peak = int(peak_stash(schedule.actions[stage]))
        if peak > promised:
            raise ValueError(
                f"stage {stage} holds {peak} forward passes at once and promises {promised}"
            )


def _check_joint(schedule: Schedule) -> None:
    for stage in range(schedule.stages):
        passes = schedule.compute(stage)
        for action, behind in zip(passes, (*passes[1:], None), strict=True):
            if action.kind == "B" and (
                behind is None
                or behind.kind != "W"
                or (behind.micro_batch, behind.chunk) != (action.micro_batch, action.chunk)
            ):
                raise ValueError(
                    f"stage {stage} runs {action} jointly with its weights' half, "
                    f"but {behind} follows"
                )
