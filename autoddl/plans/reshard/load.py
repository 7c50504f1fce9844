"""The load-balancing problem of a resharding: which host sends each task, and in which order.

AlpaComm section 3.2, Eqs. 1-3. A job can be sent by one of several hosts. With its sender chosen it
takes a known time, during which it occupies the outgoing side of the sender's link and the incoming
sides of its receivers' links; jobs that share one of these cannot overlap. Jobs are started in some
order, each as soon as its links are free. The objective is the makespan, the end of the last job.
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
    """A job with its options, and `weight` devices. Jobs of equal `kind` are interchangeable."""

    number: int
    options: tuple[Option, ...]
    weight: int
    kind: Hashable


@dataclass(frozen=True)
class Assignment:
    """Jobs in order, each with its option; `evaluations` counts the options that were priced."""

    order: tuple[tuple[int, int], ...]  # (job, option)
    seconds: float
    evaluations: int


def run(jobs: Sequence[Job], order: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """The (start, end) of each entry of `order`."""
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
    """A lower bound on the makespan: per link, the seconds of jobs all of whose options use it.

    Also the jobs' shortest times divided by the number of senders.
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
