"""The tasks of a schedule and their dependencies, shared by simulator and verifier.

A task is a pass of one part, or a transfer between two stages. Its dependencies are, for

    F of part v:      the activations of every flow (u, v), or F of u if u is on the same stage
    B of part u:      F of u; the gradients of every flow (u, v), or B (joint: W) of v
    W of part v:      B of v
    activations u>v:  F of u            gradients u>v:  B of v, and W of v if they run jointly
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .orders import Action
from .schedule import Flow, Schedule


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
