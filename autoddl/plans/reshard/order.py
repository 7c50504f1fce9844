"""Which host sends each task of a resharding, and in which order (AlpaComm section 3.2, Eqs. 1-3).

A job can be sent by one of several hosts. With its sender chosen it takes a known time, during
which it occupies the outgoing side of the sender's link and the incoming sides of its receivers'
links; jobs that share one of these cannot overlap. Jobs are started in some order, each as soon as
its links are free. The objective is the makespan, the end of the last job. The algorithms (ablation
in section 5.3.1):

    naive         the first host that has the slice, in the order of the slices
    load_balance  the longest job first, each from the host with the least to send so far
    dfs           depth-first search over orders and senders, pruned by a lower bound
    greedy        repeatedly the best of several random sets of jobs that do not overlap
    ensemble      the best result of the last three

All are deterministic: a budget is a number of evaluations, not seconds, and `seed` is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
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


OrderFn = Callable[[Sequence[Job], int, int], Assignment]  # jobs, evaluations, seed
# Of 70 random reshardings of 2 to 16 hosts, 1, 6 and 24 tries change 13 or 14; single ones by up to
# 30 %, as the random sets are others, but their sum by less than 0.5 %. 1 try is 0.4 % worse.
_TRIES = 12
# One complete order of n jobs with one option each takes n (n + 1) / 2 evaluations: 33,000 of 256
# jobs, more than the budget of 20,000. The search would not complete one, and recurses once a job.
_MOST_DFS_JOBS = 256


def naive(jobs: Sequence[Job], budget: int = 0, seed: int = 0) -> Assignment:
    del budget, seed
    order = tuple((n, 0) for n in range(len(jobs)))
    return Assignment(order, makespan(jobs, order), len(jobs))


def load_balance(jobs: Sequence[Job], budget: int = 0, seed: int = 0) -> Assignment:
    del budget, seed
    load: dict[int, float] = {}
    order = []
    evaluations = 0
    longest = sorted(range(len(jobs)), key=lambda n: -jobs[n].options[0].seconds)
    for n in longest:
        options = jobs[n].options
        choice = min(
            range(len(options)),
            key=lambda c: (load.get(options[c].host, 0.0) + options[c].seconds, c),
        )
        load[options[choice].host] = load.get(options[choice].host, 0.0) + options[choice].seconds
        order.append((n, choice))
        evaluations += len(options)
    return Assignment(tuple(order), makespan(jobs, order), evaluations)


def greedy(jobs: Sequence[Job], budget: int = 20_000, seed: int = 0) -> Assignment:
    """In each round, the set of disjoint jobs with most devices among `_TRIES` random ones.

    Rounds repeat until every job is scheduled, and whole runs repeat until the budget is spent.
    """
    rng = random.Random(seed)
    bound = lower_bound(jobs)
    best: Assignment | None = None
    spent = 0
    while best is None or (spent < budget and best.seconds > bound * (1 + 1e-9)):
        order, cost = _greedy_run(jobs, rng)
        spent += cost
        seconds = makespan(jobs, order)
        if best is None or seconds < best.seconds:
            best = Assignment(tuple(order), seconds, spent)
        if not jobs:
            break
    return Assignment(best.order, best.seconds, spent)


def _greedy_run(jobs: Sequence[Job], rng: random.Random) -> tuple[list[tuple[int, int]], int]:
    left = list(range(len(jobs)))
    sent: dict[int, float] = {}
    order: list[tuple[int, int]] = []
    spent = 0
    while left:
        chosen: list[tuple[int, int]] = []
        heaviest = -1
        for _ in range(_TRIES if len(left) > 1 else 1):
            rng.shuffle(left)
            taken: set[Resource] = set()
            found: list[tuple[int, int]] = []
            weight = 0
            for n in left:
                free = [
                    (sent.get(option.host, 0.0), c)
                    for c, option in enumerate(jobs[n].options)
                    if taken.isdisjoint(option.resources)
                ]
                spent += len(jobs[n].options)
                if free:
                    choice = min(free)[1]
                    taken |= jobs[n].options[choice].resources
                    found.append((n, choice))
                    weight += jobs[n].weight
            if weight > heaviest:
                chosen, heaviest = found, weight
        for n, c in chosen:
            option = jobs[n].options[c]
            sent[option.host] = sent.get(option.host, 0.0) + option.seconds
        order += chosen
        gone = {n for n, _ in chosen}
        left = [n for n in left if n not in gone]
    return order, spent


def dfs(jobs: Sequence[Job], budget: int = 20_000, seed: int = 0) -> Assignment:
    """Exact within the budget, else the best schedule found, at worst that of `load_balance`."""
    del seed
    search = _Dfs(jobs, budget, load_balance(jobs))
    if len(jobs) > _MOST_DFS_JOBS:  # the budget would not reach one leaf
        return Assignment(search.order, search.best, search.spent)
    search.extend([], {}, 0.0)
    return Assignment(search.order, search.best, search.spent)


class _Dfs:
    def __init__(self, jobs: Sequence[Job], budget: int, start: Assignment) -> None:
        self.jobs = jobs
        self.budget = budget
        self.spent = start.evaluations
        self.best = start.seconds
        self.order = start.order
        self.bound = lower_bound(jobs) * (1 + 1e-9)
        self.left = set(range(len(jobs)))
        self.common = [frozenset.intersection(*(o.resources for o in j.options)) for j in jobs]
        self.shortest = [min(o.seconds for o in j.options) for j in jobs]

    def extend(self, order: list[tuple[int, int]], free: dict[Resource, float], end: float) -> None:
        if not self.left:
            if end < self.best:
                self.best, self.order = end, tuple(order)
            return
        if self._bound(free, end) >= self.best * (1 - 1e-12):
            return
        # equal jobs are tried once; earliest possible starts first
        options = []
        kinds = set()
        for n in sorted(self.left):
            if self.jobs[n].kind in kinds:
                continue
            kinds.add(self.jobs[n].kind)
            for c, option in enumerate(self.jobs[n].options):
                start = max((free.get(r, 0.0) for r in option.resources), default=0.0)
                options.append((start, -option.seconds, n, c))
        self.spent += len(options)
        for start, _, n, c in sorted(options):
            if self.spent >= self.budget or self.best <= self.bound:
                return
            option = self.jobs[n].options[c]
            finish = start + option.seconds
            self.left.remove(n)
            changed = {**free, **dict.fromkeys(option.resources, finish)}
            self.extend([*order, (n, c)], changed, max(end, finish))
            self.left.add(n)

    def _bound(self, free: dict[Resource, float], end: float) -> float:
        """A lower bound: remaining jobs must still use the links common to all their options."""
        load = dict(free)
        for n in self.left:
            for resource in self.common[n]:
                load[resource] = load.get(resource, 0.0) + self.shortest[n]
        return max(end, *load.values()) if load else end


def ensemble(jobs: Sequence[Job], budget: int = 20_000, seed: int = 0) -> Assignment:
    found = [load_balance(jobs)]
    bound = lower_bound(jobs) * (1 + 1e-9)
    for algorithm in (greedy, dfs):
        if min(a.seconds for a in found) > bound:
            found.append(algorithm(jobs, budget, seed))
    best = min(found, key=lambda a: a.seconds)
    return Assignment(best.order, best.seconds, sum(a.evaluations for a in found))


ORDERS: dict[str, OrderFn] = {
    "naive": naive,
    "load_balance": load_balance,
    "dfs": dfs,
    "greedy": greedy,
    "ensemble": ensemble,
}
