"""What follows from the plan of a stage: its seconds and bytes, and how good it is.

They are computed by the cost model and never stored, so a file cannot claim others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cost.account import Cost, account, total
from ..cost.bounds import ProductBytes, product_bytes
from ..cost.extrapolation import Extrapolated, extrapolated_steps
from ..cost.liveness import Runtime, memory_peak, required_bytes
from ..cost.model import CostModel
from ..cost.operators import Timed, timed_operators
from ..cost.recompute import Recomputation
from ..cost.savings import Savings, savings
from ..cost.step_tensors import PlannedStep
from ..cost.tape import Peak
from ..search.problem import relative_gap
from .records import PlannedLayer, StagePrice
from .stage import StagePlan
from .stage_account import columns


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
            stage.precision, stage.back_end,
        )  # fmt: skip

    @cached_property
    def again(self) -> Recomputation:
        stage = self.stage
        return Recomputation(stage.graph, stage.recomputed, stage.in_flight)

    @cached_property
    def step(self) -> PlannedStep:
        """What runs on each device."""
        stage = self.stage
        return PlannedStep(
            stage.graph, stage.mesh, stage.micro_batches, stage.optimizer, stage.ops, stage.edges,
            self.again,
        )  # fmt: skip

    @cached_property
    def costs(self) -> Mapping[str, Cost]:
        """Operator name -> its cost in one iteration."""
        stage = self.stage
        return account(
            stage.graph, self.model, stage.micro_batches, stage.ops, stage.edges, self.again
        )

    @cached_property
    def cost(self) -> Cost:
        """The cost of one iteration on one device."""
        return total(self.costs.values())

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        return total(self.costs[name] for name in layer.ops)

    @property
    def gap(self) -> float | None:
        """Fraction by which a better plan of the searched space may be faster; None if unknown."""
        bound = self.stage.search.lower_bound_s
        if bound is None or bound <= 0:
            return None
        return relative_gap(self.cost.iteration_s, bound)

    @cached_property
    def product_bytes(self) -> ProductBytes:
        """What each device receives for matrix products, and the least that it has to."""
        stage = self.stage
        return product_bytes(
            stage.graph, stage.mesh, stage.micro_batches, stage.memory_limit_bytes, stage.ops,
            stage.edges, self.again, stage.cluster.collectives,
        )  # fmt: skip

    @cached_property
    def extrapolated(self) -> tuple[Extrapolated, ...]:
        """Steps far outside what the cluster's calibration measured; () without a calibration."""
        stage = self.stage
        return extrapolated_steps(stage.graph, stage.cluster, stage.ops, stage.edges)

    @cached_property
    def timed(self) -> Timed:
        """How many operators are priced by a measurement of their own."""
        stage = self.stage
        return timed_operators(stage.cluster.device, stage.graph)

    @cached_property
    def savings(self) -> Savings:
        """What accumulation and split storage save and cost."""
        stage = self.stage
        return savings(
            stage.graph, self.model, stage.micro_batches, stage.ops, stage.edges, self.again,
            self.costs,
        )  # fmt: skip

    @cached_property
    def price(self) -> StagePrice:
        """What the stage costs per micro-batch and once an iteration, and what it holds."""
        stage = self.stage
        parts = columns(stage.graph, self.model, stage.ops, stage.edges, self.again)
        whole = np.sum(list(parts.values()), axis=0)
        blocks = (sum(float(parts[name][5]) for name in block) for block in self.again.blocks)
        whole[5] = max(blocks, default=0.0)
        return StagePrice(*map(float, whole))

    def memory_peak(self, runtime: Runtime = "graph") -> Peak:
        """The fullest moment of a step on one device, by the lifetimes of its tensors."""
        return memory_peak(self.step, self.model.memory_rules, runtime)

    def required_bytes(self) -> int:
        """What a step needs of a device, which the memory limit is held against."""
        return required_bytes(self.step, self.model.memory_rules, math.inf)

    @cached_property
    def peak_bytes(self) -> int:
        """What the executor holds at its fullest moment."""
        return self.memory_peak("executor").bytes
