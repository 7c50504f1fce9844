"""What follows from the plan of a stage: its seconds and bytes, and how good it is.

They are computed by the cost model and never stored, so a file cannot claim others.

What a stage costs per micro-batch and once an iteration (`StagePrice`) follows from its account:

    c(m) = m each + once,   each = c(2) - c(1),   once = 2 c(1) - c(2)

for the account c of m micro-batches. What the fullest block that is run again holds meanwhile is
there for one micro-batch at a time, whatever is in flight. Computation is shared between the
forward and the backward pass as `cost.operators` prices them, communication half and half. What
buckets hide (`schedule.step`) is taken off likewise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..cost.account import Cost, Trips, account, total
from ..cost.exchange import Buckets, Key, exchanges, sharers
from ..cost.model import CostModel, MemoryView
from ..cost.operators import Timed, timed_operators
from ..cost.recompute import Recomputation
from ..cost.required import (
    Runtime,
    executor_peak,
    memory_course,
    memory_peak,
    required_bytes,
)
from ..cost.step_tensors import PlannedStep
from ..cost.tape import Moment, Peak
from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.mesh import Mesh
from ..search.problem import relative_gap
from .schedule.duplex import TurnsMaker
from .schedule.step import Step, StepMaker
from .stage import PlannedLayer, StagePlan, StagePrice

_SEVERAL = 2  # micro-batches in flight: with more of them memory grows by equal steps
Columns = dict[str, NDArray[np.float64]]  # operator -> the fields of a StagePrice


def columns(
    graph: Graph,
    model: CostModel,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation | None = None,
    buckets: Buckets = (),
) -> Columns:
    """Per operator: forward_s, backward_s, once_s, fixed_bytes, stash_bytes, work_bytes.

    again: what is run again, in the backward pass; what a block holds meanwhile is `work_bytes` of
           its operators, also if another block holds more
    buckets: gradients that travel together
    """
    again = replace(again or Recomputation(graph), in_flight=_SEVERAL)
    one = account(graph, model, 1, ops, edges, again, buckets)
    two = account(graph, model, 2, ops, edges, again, buckets)
    found, trips = {}, Trips(model)
    for op in graph.ops:
        forward_s, _ = trips.seconds(graph, op, ops[op.name])
        first, second = one[op.name], two[op.name]
        compute = second.compute_s - first.compute_s
        moved = second.communication_s - first.communication_s
        held = first.held
        counted = held.counted_bytes if op.name in again.block_of else 0.0
        kept = first.memory_bytes if op.kind == "input" else held.kept_bytes
        found[op.name] = np.array(
            [
                forward_s + moved / 2,
                compute - forward_s + moved / 2,
                max(2 * first.iteration_s - second.iteration_s, 0.0),
                first.memory_bytes - counted - (1 if op.kind == "input" else _SEVERAL) * kept,
                kept,
                held.inside_bytes,
            ]
        )
    return found


def stage_figures(stage: StagePlan) -> StageFigures:
    """The figures of a stage, kept with it once they are computed."""
    return stage.once(StageFigures)


@dataclass(frozen=True)
class StageFigures:
    """Of `stage`, each computed when it is first asked for."""

    stage: StagePlan

    @cached_property
    def model(self) -> CostModel:
        stage = self.stage
        assert stage.comm_rule in ("shared_nic", "plain")
        return CostModel(
            stage.cluster, stage.optimizer, stage.comm_rule, stage.memory_limit_bytes,
            stage.precision, stage.back_end, ema=stage.ema,
        )  # fmt: skip

    @cached_property
    def again(self) -> Recomputation:
        stage = self.stage
        return Recomputation(stage.graph, stage.recomputed, stage.in_flight)

    def know(self, step: PlannedStep, maker: StepMaker) -> None:
        """Take over what a search has worked out of a step and its tasks, if it is this one."""
        if len(self.model.memory_views) == 1 and step == self.step:
            self.__dict__.update(step=step, maker=maker)

    @cached_property
    def step(self) -> PlannedStep:
        """What runs on each device; where they hold unlike parts, as the fullest see it."""
        return self._step_on(self.fullest.mesh)

    def _step_on(self, mesh: Mesh) -> PlannedStep:
        stage = self.stage
        return PlannedStep(
            stage.graph, mesh, stage.cluster.device.kind, stage.micro_batches, stage.optimizer,
            stage.ops, stage.edges, self.again, stage.buckets, stage.ema, stage.turns, stage.waits,
        )  # fmt: skip

    @cached_property
    def needed_by_kind(self) -> tuple[tuple[MemoryView, int], ...]:
        """Bytes that a step needs of a device of each kind that may be the fullest."""
        rules, views = self.model.memory_rules, self.model.memory_views
        if len(views) == 1:  # as all else that asks for the step's memory
            return ((views[0], self._required_bytes),)
        return tuple((v, required_bytes(self._step_on(v.mesh), rules, math.inf)) for v in views)

    def needed_by(self, part: float) -> int:
        """Bytes that a step needs of a device that gets so much of the whole."""
        step = self._step_on(self.model.cluster.mesh.seen_by(part))
        return required_bytes(step, self.model.memory_rules, math.inf)

    @cached_property
    def fullest(self) -> MemoryView:
        """The kind of devices whose memory is used most, beside what there is."""
        if len(self.model.memory_views) == 1:
            return self.model.memory_views[0]
        view, _ = max(self.needed_by_kind, key=lambda item: item[1] / item[0].times)
        return view

    @property
    def limit_bytes(self) -> float:
        """Of the fullest devices."""
        return self.stage.memory_limit_bytes * self.fullest.times

    @cached_property
    def costs(self) -> Mapping[str, Cost]:
        """Operator name -> its cost in one iteration."""
        stage = self.stage
        return account(
            stage.graph, self.model, stage.micro_batches, stage.ops, stage.edges, self.again,
            stage.buckets,
        )  # fmt: skip

    @cached_property
    def sharers(self) -> Mapping[Key, int]:
        """Use of a parameter whose gradient travels in a bucket -> how many are in that bucket."""
        stage = self.stage
        return sharers(exchanges(stage.graph, stage.ops, stage.edges), stage.buckets)

    @cached_property
    def cost(self) -> Cost:
        """The cost of one iteration on one device."""
        whole = total(self.costs.values())
        stage = self.stage
        if stage.buckets or stage.turns:
            whole.hidden_s = self.maker.hidden_s(stage.buckets, stage.waits)
        return whole

    @cached_property
    def maker(self) -> StepMaker:
        """Makes the tasks of a step."""
        stage = self.stage
        sizes = stage.graph, self.model, stage.micro_batches
        one_by_one = StepMaker(*sizes, stage.ops, stage.edges, self.again)
        return TurnsMaker.of(one_by_one, stage.turns) if stage.turns else one_by_one

    @cached_property
    def tasks(self) -> Step:
        """The tasks of a step, in order; of many micro-batches, or groups, those of three."""
        return self.maker.step(self.stage.buckets, None, self.stage.waits)

    @cached_property
    def whole(self) -> Step:
        """The tasks of all micro-batches."""
        own = self.stage
        return self.maker.step(own.buckets, own.micro_batches, own.waits)

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        if layer.ops not in self._layer_costs:
            self._layer_costs[layer.ops] = total(self.costs[name] for name in layer.ops)
        return self._layer_costs[layer.ops]

    @cached_property
    def _layer_costs(self) -> dict[tuple[str, ...], Cost]:
        return {}

    @property
    def gap(self) -> float | None:
        """Fraction by which a better plan of the searched space may be faster; None if unknown."""
        bound = self.stage.search.lower_bound_s
        if bound is None or bound <= 0:
            return None
        return relative_gap(self.cost.iteration_s, bound)

    @cached_property
    def timed(self) -> Timed:
        """How many operators are priced by a measurement of their own."""
        stage = self.stage
        return timed_operators(stage.cluster.device, stage.graph)

    @cached_property
    def price(self) -> StagePrice:
        """What the stage costs per micro-batch and once an iteration, and what it holds."""
        stage = self.stage
        steps = stage.ops, stage.edges, self.again, stage.buckets
        parts = columns(stage.graph, self.model, *steps)
        whole = np.sum(list(parts.values()), axis=0)
        blocks = (sum(float(parts[name][5]) for name in block) for block in self.again.blocks)
        whole[5] = max(blocks, default=0.0)
        if stage.turns:
            return StagePrice(*map(float, whole))
        each_s, once_s = self.maker.hidden_in(stage.buckets, stage.waits)
        whole[:3] -= each_s / 2, each_s / 2, once_s
        return StagePrice(*map(float, whole), hidden_s=max(once_s, 0.0))

    def memory_peak(self, runtime: Runtime = "graph") -> Peak:
        """The fullest moment of a step on one device, by the lifetimes of its tensors."""
        return memory_peak(self.step, self.model.memory_rules, runtime)

    @cached_property
    def executor_peak(self) -> Peak:
        """As `memory_peak("executor")`, sooner, but for its largest tensors."""
        return executor_peak(self.step, self.model.memory_rules)

    @cached_property
    def memory_course(self) -> list[Moment]:
        """What the executor holds on one device at each operator, forward and backward."""
        return memory_course(self.step, self.model.memory_rules)

    def required_bytes(self) -> int:
        """What a step needs of a device, which the memory limit is held against."""
        return self._required_bytes

    @cached_property
    def _required_bytes(self) -> int:
        rules = self.model.memory_rules
        return required_bytes(self.step, rules, math.inf, self.executor_peak.bytes)

    @cached_property
    def peak_bytes(self) -> int:
        """What the executor holds at its fullest moment."""
        return self.executor_peak.bytes
