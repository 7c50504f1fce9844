"""What a plan with stages holds, and what follows from it and is not stored.

That is what travels between the stages (`stage_links`), the schedule, its timeline, and figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...cluster.spec import Cluster
from ...graph.batch_norm import BatchNorm, batch_norm_of
from ...graph.cut import CutGraph
from ...graph.graph import Graph
from ..links import PlannedStage, StageLinks
from ..renamed import renamed
from ..schedule.costs import Costs
from ..schedule.make import make_schedule
from ..schedule.schedule import Schedule
from ..schedule.simulate import Timeline, peak_stash, simulate
from ..schedule.verify import verify
from ..stage_price import StagePrice


@dataclass(frozen=True)
class StagedFigures:
    """A pipeline for training `cut.graph` on `cluster`, and its cost.

    cut:    of the traced graph, at the size of a micro-batch
    delay:  of the weights' half of backward passes, see `plans.schedule.orders`
    stages: the parts of the model in order, `chunks` on each stage
    """

    cut: CutGraph
    cluster: Cluster
    micro_batches: int
    schedule_name: str
    delay: int | None
    stages: tuple[PlannedStage, ...]
    chunks: int = 1

    @property
    def batch_norm(self) -> BatchNorm:
        """The rows that BatchNorm takes its statistics of."""
        return batch_norm_of(self.cut.graph)

    @cached_property
    def same_as(self) -> tuple[int, ...]:
        """Per part, the first part with the same plan but for names (itself, if none is before)."""
        found: list[int] = []
        for n, stage in enumerate(self.stages):
            firsts = [first for first in dict.fromkeys(found) if self._is_same(first, stage)]
            found.append(firsts[0] if firsts else n)
        return tuple(found)

    def _is_same(self, first: int, stage: PlannedStage) -> bool:
        other = self.stages[first]
        if other.place.mesh != stage.place.mesh:
            return False
        return renamed(other.plan, stage.plan.graph) == stage.plan

    @cached_property
    def prices(self) -> tuple[StagePrice, ...]:
        """Of each part."""
        return tuple(self.stages[first].price for first in self.same_as)

    @property
    def graph(self) -> Graph:
        """The whole graph, at the size of a micro-batch."""
        return self.cut.graph

    @property
    def precision(self) -> str:
        """ "float16" if the model computes in mixed precision."""
        return self.stages[0].plan.precision

    @property
    def num_stages(self) -> int:
        """Parts of the cluster in the pipeline."""
        return len(self.stages) // self.chunks

    def parts_of(self, stage: int) -> range:
        """The parts of the model on a stage."""
        return range(stage, len(self.stages), self.num_stages)

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.cut.graph.batch * self.micro_batches

    @cached_property
    def travel(self) -> StageLinks:
        """What travels between the parts."""
        return StageLinks(self.cut.graph, self.cluster, self.stages, self.num_stages)

    @cached_property
    def costs(self) -> Costs:
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
            costs=self.costs,
        )
        verify(schedule, overlap=True)
        return schedule

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self.schedule, self.costs)

    @cached_property
    def iteration_s(self) -> float:
        """Until every stage has done its last pass and what it does once an iteration."""
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
        prices = [[self.prices[v] for v in self.parts_of(n)] for n in range(self.num_stages)]
        return tuple(
            sum(p.fixed_bytes for p in parts)
            + peak_stash(actions, [p.stash_bytes for p in parts])
            + max(p.work_bytes for p in parts)
            for parts, actions in zip(prices, self.schedule.actions, strict=True)
        )
