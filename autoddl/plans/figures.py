"""What a plan holds, and what follows from it and is not stored.

A plan is a pipeline: it cuts the model into runs of layers and places each on a mesh of its own
(`plans.stage`). What is trained on one mesh alone is a pipeline of one stage. An interleaved
pipeline has several parts (chunks) of the model on each of its stages: part v lies on stage
v mod stages. With one chunk a part is a stage.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..cluster.spec import Cluster
from ..cost.account import Cost, Traffic
from ..cost.bounds import ProductBytes
from ..cost.extrapolation import Extrapolated
from ..cost.liveness import Runtime
from ..cost.model import CostModel
from ..cost.operators import Timed
from ..cost.recompute import Blocks, Recomputation
from ..cost.savings import Savings
from ..cost.step_tensors import PlannedStep
from ..cost.tape import Peak
from ..graph.batch_norm import BatchNorm, batch_norm_of
from ..graph.cut import CutGraph
from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.mesh import Mesh
from .links import StageLinks
from .records import PlannedBaseline, PlannedLayer, SearchRecord, StagePrice
from .schedule.costs import Costs
from .schedule.make import make_schedule
from .schedule.schedule import Schedule
from .schedule.simulate import Timeline, peak_stash, simulate
from .schedule.verify import verify
from .stage import StagePlan


@dataclass(frozen=True)
class PlanFigures:
    """A pipeline for training a traced graph on `cluster`.

    cut:    the graph at the size of a micro-batch, and its layers
    stages: the parts of the model in order, `chunks` on each stage
    delay:  of the weights' half of backward passes, see `plans.schedule.orders`
    """

    cut: CutGraph
    cluster: Cluster
    stages: tuple[StagePlan, ...]
    baselines: tuple[PlannedBaseline, ...] = ()
    schedule_name: str = "1f1b"
    delay: int | None = None
    chunks: int = 1

    @property
    def graph(self) -> Graph:
        """The whole model at the size of a micro-batch."""
        return self.cut.graph

    @property
    def num_stages(self) -> int:
        """Parts of the cluster in the pipeline."""
        return len(self.stages) // self.chunks

    def parts_of(self, stage: int) -> range:
        """The parts of the model on a stage."""
        return range(stage, len(self.stages), self.num_stages)

    @property
    def micro_batches(self) -> int:
        return self.stages[0].micro_batches

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.graph.batch * self.micro_batches

    # ---- what was asked for, of all stages alike

    @property
    def seed(self) -> int:
        return self.stages[0].seed

    @property
    def optimizer(self) -> str:
        return self.stages[0].optimizer

    @property
    def comm_rule(self) -> str:
        return self.stages[0].comm_rule

    @property
    def precision(self) -> str:
        """ "float16" if the model computes in mixed precision."""
        return self.stages[0].precision

    @property
    def back_end(self) -> str:
        """Whose memory rules say what a step needs."""
        return self.stages[0].back_end

    @property
    def batch_norm(self) -> BatchNorm:
        """The rows that BatchNorm takes its statistics of."""
        return batch_norm_of(self.graph)

    @property
    def memory_limit_bytes(self) -> float:
        """Of a device, which the parts of its stage share."""
        return self.stages[0].memory_limit_bytes * self.chunks

    # ---- the pipeline

    @cached_property
    def travel(self) -> StageLinks:
        """What travels between the parts."""
        return StageLinks(self.graph, self.cluster, self.stages, self.num_stages)

    @cached_property
    def same_as(self) -> tuple[int, ...]:
        """Per part, the first part with the same plan (itself, if none is before).

        But for names and the number of micro-batches in flight.
        """
        found: list[int] = []
        for n, stage in enumerate(self.stages):
            firsts = [first for first in dict.fromkeys(found) if self._is_same(first, stage)]
            found.append(firsts[0] if firsts else n)
        return tuple(found)

    def _is_same(self, first: int, stage: StagePlan) -> bool:
        other = self.stages[first]
        if other.mesh != stage.mesh:
            return False
        found = other.for_equal(stage.graph)
        if found is None:
            return False
        found = found.at(stage.first, stage.last, stage.place)
        return dataclasses.replace(found, in_flight=stage.in_flight) == stage

    @cached_property
    def prices(self) -> tuple[StagePrice, ...]:
        """Of each part."""
        return tuple(self.stages[first].price for first in self.same_as)

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
        schedule = make_schedule(
            self.schedule_name,
            self.num_stages,
            self.micro_batches,
            chunks=self.chunks,
            delay=self.delay,
            flows={(link.source, link.target) for link in self.travel.links},
            costs=self.pass_costs,
        )
        verify(schedule, overlap=True)
        return schedule

    @cached_property
    def timeline(self) -> Timeline:
        """When each pass runs."""
        return simulate(self.schedule, self.pass_costs)

    @cached_property
    def iteration_s(self) -> float:
        """Until every stage has done its last pass and what it does once an iteration."""
        if len(self.stages) == 1:
            return self.cost.iteration_s
        ends = [0.0] * self.num_stages
        for span in self.timeline.spans:
            ends[span.stage] = max(ends[span.stage], span.end_s)
        return max(
            end + sum(self.prices[v].once_s + self.travel.exchange_s[v] for v in self.parts_of(i))
            for i, end in enumerate(ends)
        )

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """Per stage, of one device: its parts, and the most that passes in flight hold at once."""
        if len(self.stages) == 1:
            return (self.cost.memory_bytes,)
        prices = [[self.prices[v] for v in self.parts_of(n)] for n in range(self.num_stages)]
        return tuple(
            sum(p.fixed_bytes for p in parts)
            + peak_stash(actions, [p.stash_bytes for p in parts])
            + max(p.work_bytes for p in parts)
            for parts, actions in zip(prices, self.schedule.actions, strict=True)
        )

    @cached_property
    def cost(self) -> Cost:
        """Of one iteration, on a device of the busiest part; its NIC takes what other stages send.

        A pipeline takes longer (`iteration_s`): its stages also wait for each other.
        """
        busiest = max((stage.cost for stage in self.stages), key=lambda cost: cost.iteration_s)
        if len(self.stages) == 1:
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
                hosts[host].forward += count * self.micro_batches
            for host, count in backward.nic_bytes[0].items() if backward else ():
                hosts[host].backward += count * self.micro_batches
        return max(hosts.values(), key=lambda traffic: traffic.total, default=Traffic())

    # ---- all layers

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        return tuple(layer for stage in self.stages for layer in stage.layers)

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        """Of one iteration on one device of the layer's stage."""
        return self.stage_of(layer).layer_cost(layer)

    def stage_of(self, layer: PlannedLayer) -> StagePlan:
        """The stage that has a layer."""
        return next(stage for stage in self.stages if layer in stage.layers)

    @property
    def recomputed(self) -> Blocks:
        return tuple(block for stage in self.stages for block in stage.recomputed)

    @property
    def closest_baseline(self) -> PlannedBaseline | None:
        """The fastest of the known schemes that fit, None if none was priced or none fits."""
        fitting = [(b.iteration_s, n) for n, b in enumerate(self.baselines) if b.iteration_s]
        return self.baselines[min(fitting)[1]] if fitting else None

    # ---- of a plan on one mesh

    @property
    def stage(self) -> StagePlan:
        """The only stage. ValueError if there are several."""
        first, *others = self.stages
        if others:
            raise ValueError(
                f"the plan has {len(self.stages)} stages; this is for plans with one stage"
            )
        return first

    @property
    def mesh(self) -> Mesh:
        return self.stage.mesh

    @property
    def ops(self) -> Mapping[str, PlannedOp]:
        return self.stage.ops

    @property
    def edges(self) -> Mapping[tuple[str, int], PlannedEdge]:
        return self.stage.edges

    @property
    def search(self) -> SearchRecord:
        return self.stage.search

    @property
    def gap(self) -> float | None:
        return self.stage.gap

    @property
    def model(self) -> CostModel:
        return self.stage.model

    @property
    def again(self) -> Recomputation:
        return self.stage.again

    @property
    def step(self) -> PlannedStep:
        return self.stage.step

    @property
    def costs(self) -> Mapping[str, Cost]:
        return self.stage.costs

    @property
    def product_bytes(self) -> ProductBytes:
        return self.stage.product_bytes

    @property
    def extrapolated(self) -> tuple[Extrapolated, ...]:
        return self.stage.extrapolated

    @property
    def timed(self) -> Timed:
        return self.stage.timed

    @property
    def savings(self) -> Savings:
        return self.stage.savings

    @property
    def peak_bytes(self) -> int | None:
        return self.stage.peak_bytes

    def memory_peak(self, runtime: Runtime = "graph") -> Peak:
        return self.stage.memory_peak(runtime)

    def required_bytes(self) -> int:
        return self.stage.required_bytes()
