"""Proves that a schedule is valid before anything runs.

`verify` checks for every schedule, generated or read from a file:

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

from collections import Counter

from .orders import peak_stash
from .schedule import Schedule
from .simulate import actions_of, all_tasks, sorted_tasks


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
