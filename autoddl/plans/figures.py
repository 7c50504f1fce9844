"""What follows from a plan: its schedule and timeline, what travels, its seconds and bytes.

Between two stages a tensor is resharded (`reshard`), and so is its gradient; between two parts of
one stage, which an interleaved pipeline has, it is redistributed as within a stage.

All is computed by the cost model and never stored, so a file cannot claim others.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .._files import expect
from ..cluster.spec import Cluster
from ..cost.account import Cost, Traffic
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedOp
from ..sbp.collectives import Step
from ..sbp.layout import TensorSpec
from ..sbp.placement import NdSbp
from ..sbp.redistribute import cheapest_path
from .plan import Plan
from .reshard.plan import ReshardPlan, plan_reshard
from .reshard.strategies import End
from .schedule.make import make_schedule, verify
from .schedule.orders import Action
from .schedule.schedule import Costs, Schedule
from .schedule.simulate import Exchange, Span, Timeline, simulate
from .schedule.step import COMPUTING
from .schedule.step import Step as ScheduledStep
from .stage import PlannedLayer, StagePlan, StagePrice
from .stage_figures import stage_figures

SHARED = "gradients of shared parameters"  # what stages exchange with each other once a step
Steps = tuple[Step, ...]


@dataclass(frozen=True)
class Link:
    """`tensor` travels from part `source` to part `target`; its gradient, if any, back."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class StageLinks:
    """Of the parts `stages` of `graph` (of one micro-batch), part v on stage v mod `num_stages`."""

    graph: Graph
    cluster: Cluster
    stages: tuple[StagePlan, ...]
    num_stages: int

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """By source part, then in graph order, then by target."""
        return tuple(
            Link(op.attrs["tensor"], source, target)
            for source, stage in enumerate(self.stages)
            for op in stage.graph.ops
            if op.kind == "stage_output"
            for target in range(source + 1, len(self.stages))
            if self._end(target, "stage_input", op.attrs["tensor"])
        )

    def _end(self, stage: int, kind: str, tensor: str) -> Op | None:
        return self._ends.get((stage, kind, tensor))

    @cached_property
    def _ends(self) -> dict[tuple[int, str, str], Op]:
        return {
            (n, op.kind, op.attrs["tensor"]): op
            for n, stage in enumerate(self.stages)
            for op in stage.graph.ops
            if op.kind in ("stage_input", "stage_output")
        }

    @cached_property
    def reshards(self) -> Mapping[Link, tuple[ReshardPlan, ReshardPlan | None]]:
        """How each link's tensor travels between two stages, and its gradient back."""
        return {
            link: self.reshard(link, self.graph.tensors[link.tensor].spec)
            for link in self.links
            if not self.is_local(link)
        }

    def reshard(self, link: Link, spec: TensorSpec) -> tuple[ReshardPlan, ReshardPlan | None]:
        """As `reshards`, of a tensor `spec` (another batch, say)."""
        source, target = self.stages[link.source], self.stages[link.target]
        out, into = self.ends(link)
        forward = self._planned(spec, _end(source, out.ins[0]), _end(target, into.outs[0]))
        back, wanted = into.grad_outs[0], out.grad_ins[0]
        backward = None
        if back is not None and wanted is not None:
            backward = self._planned(spec, _end(target, back), _end(source, wanted))
        return forward, backward

    def _planned(self, spec: TensorSpec, source: End, target: End) -> ReshardPlan:
        """Between stages that lie to each other as two others do, like there."""
        first, ends = source.place.first_node, (source, target)
        places = [(e.place.first_node - first, e.place.first_gpu, e.place.shape) for e in ends]
        kinds = tuple(tuple(self.cluster.groups_of(end.place)) for end in ends)
        key = spec, source.nd, target.nd, source.shares, target.shares, kinds, *places
        if key not in self._known:
            cluster = self.cluster.between(end.place for end in ends)
            self._known[key] = plan_reshard(spec, source, target, cluster)
        known = self._known[key]
        hosts = first - known.source.place.first_node
        return known.moved(hosts) if hosts else known

    @cached_property
    def _known(self) -> dict[Hashable, ReshardPlan]:
        return {}

    def ends(self, link: Link) -> tuple[PlannedOp, PlannedOp]:
        """The placements of its `end_ops`."""
        given, taken = self.end_ops(link)
        return self.stages[link.source].ops[given.name], self.stages[link.target].ops[taken.name]

    def end_ops(self, link: Link) -> tuple[Op, Op]:
        """What gives the link's tensor in its source's graph, and takes it in its target's."""
        given = self._end(link.source, "stage_output", link.tensor)
        taken = self._end(link.target, "stage_input", link.tensor)
        assert given is not None and taken is not None
        return given, taken

    def is_local(self, link: Link) -> bool:
        return link.source % self.num_stages == link.target % self.num_stages

    @cached_property
    def local_paths(self) -> Mapping[Link, tuple[Steps, Steps | None]]:
        """The steps of each link between two parts of one stage, and its gradient's back."""
        found: dict[Link, tuple[Steps, Steps | None]] = {}
        for link in filter(self.is_local, self.links):
            spec = self.graph.tensors[link.tensor].spec
            out, into = self.ends(link)
            mesh = self.stages[link.source].mesh
            comm = stage_figures(self.stages[link.source]).model.comm
            paths = mesh, comm.price, comm.collectives
            forward = cheapest_path(spec, out.ins[0], into.outs[0], *paths)
            back, wanted = into.grad_outs[0], out.grad_ins[0]
            backward = None
            if back is not None and wanted is not None:
                backward = cheapest_path(spec, back, wanted, *paths)
            found[link] = forward, backward
        return found

    @cached_property
    def shared_params(self) -> dict[str, tuple[int, ...]]:
        """Tied parameter (its tensor) -> the parts that hold it and add up its gradients."""
        found: dict[str, list[int]] = {}
        for n, stage in enumerate(self.stages):
            for op in stage.graph.params:
                found.setdefault(op.outputs[0], []).append(n)
        return {name: tuple(stages) for name, stages in found.items() if len(stages) > 1}

    @cached_property
    def shared_s(self) -> tuple[dict[int, float], ...]:
        """Of each shared parameter: part -> seconds that it spends on its gradient."""
        found: list[dict[int, float]] = []
        for name, parts in self.shared_params.items():
            cluster = self.cluster.between(self.stages[n].place for n in parts)
            link = cluster.inter if cluster.nodes > 1 else cluster.intra
            n_bytes = self.graph.tensors[name].spec.bytes
            width = {n: max(self.stages[n].place.nodes, 1) for n in parts}
            found.append({n: 2 * link.transfer_seconds(n_bytes / width[n]) for n in parts})
        return tuple(found)


def _end(stage: StagePlan, nd: NdSbp) -> End:
    return End(stage.place, nd, stage.shares)


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
            return _of_step(self.schedule, stage_figures(self.plan.stage).whole)
        once = [
            (part, "gradients and parameters", price.once_s, price.hidden_s)
            for part, price in enumerate(self.prices)
        ]
        passes = simulate(self.schedule, self.pass_costs)
        return passes.then(once).together(SHARED, self.travel.shared_s)

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
            (stage_figures(self.plan.stages[n]).cost for n in dict.fromkeys(self.same_as)),
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


def _of_step(schedule: Schedule, step: ScheduledStep) -> Timeline:
    """The passes and exchanges of a step of one stage, whose micro-batches are all put down.

    A pass lasts from its first task to its last one, or to the turn of another micro-batch; half of
    a backward pass is that of weights.
    """
    starts, ends = step.times
    passes: list[tuple[tuple[str, int], float, float]] = []
    exchanges: list[Exchange] = []
    for number, task in enumerate(step.tasks):
        if task.cause == "exchange":
            which = f"gradients of {len(task.members)} parameters, from {task.operator} on"
            exchanges.append(Exchange(0, 0, which, starts[number], ends[number]))
        elif task.cause in COMPUTING:
            start = starts[number]
            if passes and passes[-1][0] == (task.cause, task.micro_batch):
                _, start, _ = passes.pop()
            passes.append(((task.cause, task.micro_batch), start, ends[number]))
    spans: list[Span] = []
    for (cause, number), start, end in passes:
        if cause == "forward":
            spans.append(Span(0, Action("F", number), start, end))
        else:
            middle = (start + end) / 2
            spans.append(Span(0, Action("B", number), start, middle))
            spans.append(Span(0, Action("W", number), middle, end))
    return Timeline(schedule, tuple(spans), tuple(exchanges))
