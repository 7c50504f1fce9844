"""Plans a resharding: strategy, senders and order of its unit tasks, with price and lower bound.

    plan_reshard(spec, End(place, nd), End(place, nd), cluster)

tries every strategy (or the one given), lets `order` choose senders and an order by solving the
load-balancing problem, and returns the plan that is cheapest when messages share links
(`strategies.shared_seconds`). `ReshardPlan.seconds` is that price, and the transfer time in the
simulation of a pipeline. `bound_bytes` is a lower bound: each receiving host must receive each byte
that it lacks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ...cluster.spec import Cluster
from ...sbp.layout import TensorSpec
from ...sbp.mesh import Device
from .order import ORDERS, Job, Option, run
from .strategies import (
    STRATEGIES,
    Delivery,
    End,
    Move,
    Strategy,
    UnitTask,
    deliver,
    in_rounds,
    shared_seconds,
    unit_tasks,
)

# Evaluations. Of 70 random reshardings, twice the budget changes none, half changes one and a
# quarter two, of which one becomes 20 % slower.
DEFAULT_BUDGET = 20_000
# Of the same 70, bundling above 32 or 128 tasks changes none; above 16 it changes 7, by up to 20 %
# in either direction.
_FEW_JOBS = 64


@dataclass(frozen=True)
class Scheduled:
    """A delivery with its start and end in the load-balancing problem."""

    delivery: Delivery
    start_s: float
    end_s: float


@dataclass(frozen=True)
class ReshardPlan:
    """Deliveries in the order in which they are issued.

    strategy: of all of them; evaluations: spent on the load-balancing problem
    """

    spec: TensorSpec
    source: End
    target: End
    cluster: Cluster
    strategy: Strategy
    scheduled: tuple[Scheduled, ...]
    evaluations: int

    def moved(self, hosts: int) -> ReshardPlan:
        """The same with both ends so many hosts further on, which changes nothing else.

        GPT-3 175B in 8 stages on 128 hosts is resharded at 14 ends; 4 of them are planned.
        """

        def on(devices: Iterable[Device]) -> tuple[Device, ...]:
            return tuple((host + hosts, gpu) for host, gpu in devices)

        def end(old: End) -> End:
            place = dataclasses.replace(old.place, first_node=old.place.first_node + hosts)
            return dataclasses.replace(old, place=place)

        def scheduled(item: Scheduled) -> Scheduled:
            old, (sender,) = item.delivery, on([item.delivery.sender])
            task = dataclasses.replace(
                old.task, senders=on(old.task.senders), receivers=on(old.task.receivers)
            )
            return dataclasses.replace(
                item, delivery=dataclasses.replace(old, task=task, sender=sender)
            )

        found = dataclasses.replace(
            self,
            source=end(self.source),
            target=end(self.target),
            scheduled=tuple(map(scheduled, self.scheduled)),
        )
        found.__dict__["seconds"] = self.seconds
        return found

    def moves(self) -> Iterator[tuple[UnitTask, Move]]:
        """Every copy between two devices, in an order in which they can run."""
        for item in self.scheduled:
            for move in item.delivery.moves():
                yield item.delivery.task, move

    @cached_property
    def nic_bytes(self) -> tuple[Counter[int], Counter[int]]:
        """(into, out of) each host through its NIC, in bytes."""
        into: Counter[int] = Counter()
        out: Counter[int] = Counter()
        for item in self.scheduled:
            more_in, more_out = item.delivery.nic_bytes()
            into += more_in
            out += more_out
        return into, out

    @cached_property
    def seconds(self) -> float:
        """The price: the end of the last move when messages share the links."""
        return shared_seconds(self.moves(), self.cluster)

    @property
    def scheduled_s(self) -> float:
        """The makespan of the load-balancing problem, in which a task has its links to itself."""
        return max((item.end_s for item in self.scheduled), default=0.0)

    @cached_property
    def bound_bytes(self) -> Counter[int]:
        """A lower bound on the bytes into each receiving host: every byte that it needs, once."""
        return bound_bytes(item.delivery.task for item in self.scheduled)

    @property
    def bound_s(self) -> float:
        """A lower bound on the seconds: the busiest receiving link or all senders together."""
        return _bound_s([item.delivery.task for item in self.scheduled], self.cluster)


def plan_reshard(
    spec: TensorSpec,
    source: End,
    target: End,
    cluster: Cluster,
    *,
    strategy: Strategy | None = None,
    order: str = "ensemble",
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
) -> ReshardPlan:
    """The cheapest plan that the search finds.

    strategy: one of `STRATEGIES`; None takes the best
    order:    one of `order.ORDERS`; budget: evaluations that it may spend, per strategy
    Raises ValueError if an option is unknown or the two ends do not fit (see `unit_tasks`).
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}; known: {', '.join(STRATEGIES)}")
    if order not in ORDERS:
        raise ValueError(f"unknown order {order!r}; known: {', '.join(ORDERS)}")
    for what, end in (("source", source), ("target", target)):
        host = end.place.first_node + end.place.nodes
        gpu = end.place.first_gpu + end.place.gpus
        if host > cluster.nodes or gpu > cluster.gpus_per_node:
            raise ValueError(f"the {what} ({end.place}) does not lie in {cluster}")
    tasks = unit_tasks(spec, source, target)
    chosen = STRATEGIES if strategy is None else (strategy,)
    plans = [_plan(tasks, spec, source, target, cluster, s, order, budget, seed) for s in chosen]
    if order == "ensemble":
        plans = [_in_rounds(plan) for plan in plans]
    least = min(plan.seconds for plan in plans)
    # broadcast is last and carries the fewest bytes: it wins a tie
    return next(p for p in reversed(plans) if p.seconds <= least * (1 + 1e-9))


def _in_rounds(plan: ReshardPlan) -> ReshardPlan:
    """The plan with its single-device slices in rounds, if the links then do more at once.

    The load-balancing problem models hosts only. A slice for several devices keeps them all busy
    anyway.
    """
    deliveries = [item.delivery for item in plan.scheduled]
    if any(len(d.task.receivers) > 1 for d in deliveries):
        return plan
    devices = {n: (d.sender, *d.task.receivers) for n, d in enumerate(deliveries)}
    order = in_rounds(sorted(devices, key=lambda n: deliveries[n].task.box), devices)
    other = dataclasses.replace(plan, scheduled=tuple(plan.scheduled[n] for n in order))
    return min(plan, other, key=lambda p: p.seconds)


def bound_bytes(tasks: Iterator[UnitTask]) -> Counter[int]:
    """See `ReshardPlan.bound_bytes`; what a host's own devices have need not come from outside."""
    bound: Counter[int] = Counter()
    for task in tasks:
        for host in task.receiver_hosts:
            if host not in task.sender_hosts:
                bound[host] += task.bytes
    return bound


def _bound_s(tasks: list[UnitTask], cluster: Cluster) -> float:
    into = bound_bytes(iter(tasks))
    sent = sum(t.bytes for t in tasks if not set(t.receiver_hosts) <= set(t.sender_hosts))
    senders = len({host for t in tasks for host in t.sender_hosts}) or 1
    return max([sent / senders, *into.values()], default=0.0) * cluster.inter.beta_s_per_byte


def _plan(
    tasks: tuple[UnitTask, ...],
    spec: TensorSpec,
    source: End,
    target: End,
    cluster: Cluster,
    strategy: Strategy,
    order: str,
    budget: int,
    seed: int,
) -> ReshardPlan:
    options = [_options(task, strategy, cluster) for task in tasks]
    bundles = _bundles(tasks)
    jobs = [_job(n, bundle, tasks, options) for n, bundle in enumerate(bundles)]
    assignment = ORDERS[order](jobs, budget, seed)
    scheduled: list[Scheduled] = []
    sent: Counter[Device] = Counter()
    times = run(jobs, assignment.order)
    for (number, choice), (start, _) in zip(assignment.order, times, strict=True):
        for n in bundles[number]:
            delivery = _from_least_loaded(options[n][choice][0], sent)
            end = start + options[n][choice][1].seconds
            scheduled.append(Scheduled(delivery, start, end))
            start = end
    return ReshardPlan(
        spec, source, target, cluster, strategy, tuple(scheduled), assignment.evaluations
    )


def _options(task: UnitTask, strategy: Strategy, cluster: Cluster) -> list[tuple[Delivery, Option]]:
    """One option for each host that can send."""
    found = []
    for host in task.sender_hosts:
        sender = next(d for d in task.senders if d[0] == host)
        delivery = deliver(task, strategy, sender, cluster)
        into, out = delivery.nic_bytes()
        links: set[Hashable] = {*(("in", h) for h in into), *(("out", h) for h in out)}
        own = {("device", d) for d in task.receivers if d[0] == host}
        resources = frozenset(links | own or {("device", sender)})
        found.append((delivery, Option(host, delivery.seconds(cluster), resources)))
    return found


def _bundles(tasks: tuple[UnitTask, ...]) -> list[list[int]]:
    """Groups of tasks that are scheduled as one job: of many, those between the same hosts.

    They use the same links, so they cannot overlap anyway; tasks with a choice of sender stay
    alone.
    """
    if len(tasks) <= _FEW_JOBS:
        return [[n] for n in range(len(tasks))]
    found: dict[Hashable, list[int]] = {}
    for n, task in enumerate(tasks):
        hosts = task.sender_hosts
        remote = len(hosts) == 1 and hosts[0] not in task.receiver_hosts
        found.setdefault((hosts, task.receiver_hosts) if remote else n, []).append(n)
    return list(found.values())


def _job(
    number: int,
    bundle: list[int],
    tasks: tuple[UnitTask, ...],
    options: list[list[tuple[Delivery, Option]]],
) -> Job:
    if len(bundle) == 1:
        (n,) = bundle
        choices = tuple(option for _, option in options[n])
    else:
        alike = [options[n][0][1] for n in bundle]
        resources = frozenset[Hashable]().union(*(o.resources for o in alike))
        choices = (Option(alike[0].host, sum(o.seconds for o in alike), resources),)
    weight = len({d for n in bundle for d in tasks[n].receivers}) + 1
    kind = tuple((o.host, o.seconds, o.resources) for o in choices)
    return Job(number, choices, weight, kind)


def _from_least_loaded(delivery: Delivery, sent: Counter[Device]) -> Delivery:
    """The delivery with the device of the chosen host that has sent least as its sender."""
    candidates = [d for d in delivery.task.senders if d[0] == delivery.sender[0]]
    sender = min(candidates, key=lambda d: (sent[d], d))
    sent[sender] += delivery.task.bytes
    return dataclasses.replace(delivery, sender=sender)
