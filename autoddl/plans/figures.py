"""What follows from a plan: its pipeline's schedule and timeline, its seconds and bytes.

They are computed by the cost model and never stored, so a file cannot claim others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from .._files import expect
from ..cost.account import Cost, Traffic
from .links import StageLinks
from .plan import Plan
from .records import PlannedLayer, StagePrice
from .schedule.make import make_schedule
from .schedule.schedule import Costs, Schedule
from .schedule.simulate import Timeline, simulate
from .schedule.step import of_step
from .schedule.verify import verify
from .stage import StagePlan
from .stage_figures import stage_figures

SHARED = "gradients of shared parameters"  # what stages exchange with each other once a step


def figures(plan: Plan) -> PlanFigures:
    """The figures of a plan, kept with it once they are computed."""
    expect(plan, Plan, "figures are those of a Plan")
    return plan.once(PlanFigures)


@dataclass(frozen=True)
class PlanFigures:
    """Of `plan`, each computed when it is first asked for."""

    plan: Plan

    @cached_property
    def travel(self) -> StageLinks:
        """What travels between the parts."""
        plan = self.plan
        return StageLinks(plan.graph, plan.cluster, plan.stages, plan.num_stages)

    @cached_property
    def same_as(self) -> tuple[int, ...]:
        """Per part, the first part with the same plan (itself, if none is before).

        But for names and the number of micro-batches in flight.
        """
        found: list[int] = []
        for n, stage in enumerate(self.plan.stages):
            firsts = [first for first in dict.fromkeys(found) if self._is_same(first, stage)]
            found.append(firsts[0] if firsts else n)
        return tuple(found)

    def _is_same(self, first: int, stage: StagePlan) -> bool:
        other = self.plan.stages[first]
        if other.mesh != stage.mesh or other.cluster != stage.cluster:
            return False
        found = other.for_equal(stage.graph)
        if found is None:
            return False
        found = found.at(stage.first, stage.last, stage.place)
        return dataclasses.replace(found, in_flight=stage.in_flight) == stage

    @cached_property
    def prices(self) -> tuple[StagePrice, ...]:
        """Of each part."""
        return tuple(stage_figures(self.plan.stages[first]).price for first in self.same_as)

    @cached_property
    def pass_costs(self) -> Costs:
        """What the simulator takes; a weights' half is half of the backward pass."""
        activation: dict[tuple[int, int], float] = {}
        gradient: dict[tuple[int, int], float] = {}
        for link, (forward, backward) in self.travel.reshards.items():
            flow = link.source, link.target
            activation[flow] = activation.get(flow, 0.0) + forward.seconds
            gradient[flow] = gradient.get(flow, 0.0) + (backward.seconds if backward else 0.0)
        halves = tuple(price.backward_s / 2 for price in self.prices)
        forwards = tuple(price.forward_s for price in self.prices)
        return Costs(forwards, halves, halves, activation, gradient)

    @cached_property
    def schedule(self) -> Schedule:
        """Verified; its transfers are ordered by the stages' costs."""
        plan = self.plan
        schedule = make_schedule(
            plan.schedule_name,
            plan.num_stages,
            plan.micro_batches,
            chunks=plan.chunks,
            delay=plan.delay,
            flows={(link.source, link.target) for link in self.travel.links},
            costs=self.pass_costs,
        )
        verify(schedule, overlap=True)
        return schedule

    @cached_property
    def timeline(self) -> Timeline:
        """When each pass runs, and what its stage exchanges once an iteration after the last."""
        if len(self.plan.stages) == 1 and (self.plan.stage.buckets or self.plan.stage.turns):
            return of_step(self.schedule, stage_figures(self.plan.stage).whole)
        once = [
            (part, what, seconds)
            for part, price in enumerate(self.prices)
            for what, seconds in (
                ("gradients and parameters", price.once_s),
                (SHARED, self.travel.exchange_s[part]),
            )
        ]
        return simulate(self.schedule, self.pass_costs).then(once)

    @cached_property
    def iteration_s(self) -> float:
        """Until every stage has done its last pass and what it does once an iteration."""
        if len(self.plan.stages) == 1:
            return self.cost.iteration_s
        return self.timeline.iteration_s

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """Per stage, of one device: the sum of its parts, each with its micro-batches in flight."""
        plan = self.plan
        return tuple(
            sum(stage_figures(plan.stages[v]).cost.memory_bytes for v in plan.parts_of(n))
            for n in range(plan.num_stages)
        )

    @cached_property
    def needed_bytes(self) -> tuple[float, ...]:
        """Per stage, what its parts need of a device, which the memory limit is held against.

        Where devices are not alike, of those that are the fullest.
        """
        plan = self.plan
        needed = [stage_figures(stage).required_bytes() for stage in plan.stages]
        return tuple(
            float(sum(needed[v] for v in plan.parts_of(n))) for n in range(plan.num_stages)
        )

    @cached_property
    def limit_bytes(self) -> float:
        """Of the devices that are the fullest, which where they are not alike may have more."""
        plan = self.plan
        several = len(plan.stages) > 1  # stages are of devices that are alike
        return plan.memory_limit_bytes if several else stage_figures(plan.stage).limit_bytes

    @cached_property
    def largest_bytes(self) -> tuple[float, ...]:
        """`needed_bytes` on the devices that hold most, however much they may."""
        if len(self.plan.stages) > 1:
            return self.needed_bytes
        kinds = stage_figures(self.plan.stage).needed_by_kind
        return (float(max(needed for _, needed in kinds)),)

    @cached_property
    def cost(self) -> Cost:
        """Of one iteration, on a device of the busiest part; its NIC takes what other stages send.

        A pipeline takes longer (`iteration_s`): its stages also wait for each other.
        """
        busiest = max(
            (stage_figures(stage).cost for stage in self.plan.stages),
            key=lambda cost: cost.iteration_s,
        )
        if len(self.plan.stages) == 1:
            return busiest
        sent, own = self.received_bytes, busiest.nic_bytes
        whole = Traffic(own.forward + sent.forward, own.backward + sent.backward, own.gradient_sync)
        return dataclasses.replace(busiest, nic_bytes=whole)

    @cached_property
    def received_bytes(self) -> Traffic:
        """Of the host that takes most, what comes from other stages in an iteration."""
        hosts: defaultdict[int, Traffic] = defaultdict(Traffic)
        for forward, backward in self.travel.reshards.values():
            for host, count in forward.nic_bytes[0].items():
                hosts[host].forward += count * self.plan.micro_batches
            for host, count in backward.nic_bytes[0].items() if backward else ():
                hosts[host].backward += count * self.plan.micro_batches
        return max(hosts.values(), key=lambda traffic: traffic.total, default=Traffic())

    # ---- all layers

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        """Of one iteration on one device of the layer's stage."""
        return stage_figures(self.plan.stage_of(layer)).layer_cost(layer)
