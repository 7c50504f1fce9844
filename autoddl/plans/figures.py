"""What a plan holds, and the figures that follow from it.

The figures are computed by the cost model and never stored, so a file cannot claim others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..cluster.spec import Cluster
from ..cost.account import Cost, account, total
from ..cost.bounds import ProductBytes, product_bytes
from ..cost.extrapolation import Extrapolated, extrapolated_steps
from ..cost.liveness import Runtime, memory_peak, required_bytes
from ..cost.model import CostModel
from ..cost.operators import Timed, timed_operators
from ..cost.recompute import Blocks, Recomputation
from ..cost.savings import Savings, savings
from ..cost.step_tensors import PlannedStep
from ..cost.tape import Peak
from ..graph.batch_norm import BatchNorm, batch_norm_of
from ..graph.graph import Graph
from ..graph.placed import PlannedBaseline, PlannedEdge, PlannedLayer, PlannedOp
from ..sbp.mesh import Mesh
from ..search.problem import relative_gap
from .search_record import SearchRecord


@dataclass(frozen=True)
class PlanFigures:
    """Placements for training `graph` on `cluster`, micro-batch by micro-batch, and their cost.

    graph:      with forks, at the size of a micro-batch
    recomputed: blocks of operators of which only the inputs are kept for the backward pass; their
                forward pass is run again before it
    precision:  "float16" if `graph` is in mixed precision
    back_end:   whose memory rules say what a step needs
    """

    graph: Graph
    cluster: Cluster
    micro_batches: int
    seed: int
    optimizer: str
    comm_rule: str
    memory_limit_bytes: float
    ops: Mapping[str, PlannedOp]
    edges: Mapping[tuple[str, int], PlannedEdge]
    layers: tuple[PlannedLayer, ...]
    search: SearchRecord
    baselines: tuple[PlannedBaseline, ...] = ()
    recomputed: Blocks = ()
    precision: str = "float32"
    back_end: str = "oneflow"

    @property
    def batch_norm(self) -> BatchNorm:
        """The rows that BatchNorm takes its statistics of."""
        return batch_norm_of(self.graph)

    @property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.graph.batch * self.micro_batches

    @cached_property
    def model(self) -> CostModel:
        assert self.comm_rule in ("shared_nic", "plain")
        return CostModel(
            self.cluster, self.optimizer, self.comm_rule, self.memory_limit_bytes, self.precision,
            self.back_end,
        )  # fmt: skip

    @cached_property
    def again(self) -> Recomputation:
        return Recomputation(self.graph, self.recomputed)

    @cached_property
    def step(self) -> PlannedStep:
        """What runs on each device."""
        return PlannedStep(
            self.graph, self.mesh, self.micro_batches, self.optimizer, self.ops, self.edges,
            self.again,
        )  # fmt: skip

    @cached_property
    def costs(self) -> Mapping[str, Cost]:
        """Operator name -> its cost in one iteration."""
        return account(self.graph, self.model, self.micro_batches, self.ops, self.edges, self.again)

    @cached_property
    def cost(self) -> Cost:
        """The cost of one iteration on one device."""
        return total(self.costs.values())

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        return total(self.costs[name] for name in layer.ops)

    @property
    def closest_baseline(self) -> PlannedBaseline | None:
        """The fastest of the known schemes that fit, None if none was priced or none fits."""
        fitting = [(b.iteration_s, n) for n, b in enumerate(self.baselines) if b.iteration_s]
        return self.baselines[min(fitting)[1]] if fitting else None

    @property
    def gap(self) -> float | None:
        """Fraction by which a better plan of the searched space may be faster; None if unknown."""
        bound = self.search.lower_bound_s
        if bound is None or bound <= 0:
            return None
        return relative_gap(self.cost.iteration_s, bound)

    @cached_property
    def product_bytes(self) -> ProductBytes:
        """What each device receives for matrix products, and the least that it has to."""
        return product_bytes(
            self.graph, self.mesh, self.micro_batches, self.memory_limit_bytes, self.ops,
            self.edges, self.again, self.cluster.collectives,
        )  # fmt: skip

    @cached_property
    def extrapolated(self) -> tuple[Extrapolated, ...]:
        """Steps far outside what the cluster's calibration measured; () without a calibration."""
        return extrapolated_steps(self.graph, self.cluster, self.ops, self.edges)

    @cached_property
    def timed(self) -> Timed:
        """How many operators are priced by a measurement of their own."""
        return timed_operators(self.cluster.device, self.graph)

    @cached_property
    def savings(self) -> Savings:
        """What accumulation and split storage save and cost."""
        return savings(
            self.graph, self.model, self.micro_batches, self.ops, self.edges, self.again, self.costs
        )

    def memory_peak(self, runtime: Runtime = "graph") -> Peak:
        """The fullest moment of a step on one device, by the lifetimes of its tensors."""
        return memory_peak(self.step, self.model.memory_rules, runtime)

    def required_bytes(self) -> int:
        """What a step needs of a device, which the memory limit is held against."""
        return required_bytes(self.step, self.model.memory_rules, math.inf)

    @cached_property
    def peak_bytes(self) -> int | None:
        """What the limit is held against: the executor's fullest moment.

        None of a stage of a pipeline, of which only the sum is known.
        """
        return None if self.graph.is_stage else self.memory_peak("executor").bytes
