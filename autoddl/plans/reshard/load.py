"""The scheduling problem of a resharding: which host sends each task, and in which order.

AlpaComm section 3.2, Eqs. 1-3. A job may be sent by one of several hosts. With its sender chosen it
lasts some seconds and takes the outgoing side of the sender's link and the incoming sides of its
receivers' links for all that time; jobs that share one do not overlap. Jobs are started in some
order, each as early as what it takes is free. The time of the last end is to be as small as can be.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Resource = Hashable


@dataclass(frozen=True)
class Option:
    """One way to do a job: sent from `host`."""

    host: int
    seconds: float
    resources: frozenset[Resource]


@dataclass(frozen=True)
class Job:
    """`weight`: devices that take part; equal `kind`s are interchangeable."""

    number: int
    options: tuple[Option, ...]
    weight: int
    kind: Hashable


@dataclass(frozen=True)
class Assignment:
    """Jobs in order, with their options; `evaluations`: options that were looked at."""

    order: tuple[tuple[int, int], ...]  # (job, option)
    seconds: float
    evaluations: int


def run(jobs: Sequence[Job], order: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """(start, end) of each entry of `order`."""
    free: dict[Resource, float] = {}
    times = []
    for job, choice in order:
        option = jobs[job].options[choice]
        start = max((free.get(r, 0.0) for r in option.resources), default=0.0)
        end = start + option.seconds
        free.update(dict.fromkeys(option.resources, end))
        times.append((start, end))
    return times


def makespan(jobs: Sequence[Job], order: Sequence[tuple[int, int]]) -> float:
    return max((end for _, end in run(jobs, order)), default=0.0)


def lower_bound(jobs: Sequence[Job]) -> float:
    """No schedule is shorter: what every option of a job takes, added up for each resource.

    And the jobs' shortest times, shared among as many senders as there are.
    """
    load: dict[Resource, float] = {}
    total = 0.0
    for job in jobs:
        shortest = min(o.seconds for o in job.options)
        total += shortest
        for resource in frozenset.intersection(*(o.resources for o in job.options)):
            load[resource] = load.get(resource, 0.0) + shortest
    senders = len({o.host for job in jobs for o in job.options}) or 1
    return max([total / senders, *load.values()], default=0.0)
