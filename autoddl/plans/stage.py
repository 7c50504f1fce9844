"""A stage of a plan: where every operator of its layers runs, and the figures that follow.

The figures are computed by the cost model and never stored, so a file cannot claim others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cluster.spec import Cluster
from ..cluster.submesh import SubMesh
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
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.mesh import Mesh
from ..search.problem import relative_gap
from .records import PlannedLayer, SearchRecord, StagePrice
from .stage_account import columns

_NAMES = ("name", "tensor")  # attributes that hold a name


@dataclass(frozen=True)
class StagePlan:
    """Placements for training layers [first, last) of a cut model on one mesh, and their cost.

    graph:      of these layers, with forks, at the size of a micro-batch
    cluster:    the devices `place` of the plan's cluster, as a cluster of their own
    recomputed: blocks of operators of which only the inputs are kept for the backward pass; their
                forward pass is run again before it
    in_flight:  the most micro-batches whose forward pass is kept at once
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
    place: SubMesh
    first: int = 0
    last: int = 1
    recomputed: Blocks = ()
    in_flight: int = 1
    precision: str = "float32"
    back_end: str = "oneflow"

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
        return Recomputation(self.graph, self.recomputed, self.in_flight)

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

    @cached_property
    def price(self) -> StagePrice:
        """What the stage costs per micro-batch and once an iteration, and what it holds."""
        parts = columns(self.graph, self.model, self.ops, self.edges, self.again)
        whole = np.sum(list(parts.values()), axis=0)
        blocks = (sum(float(parts[name][5]) for name in block) for block in self.again.blocks)
        whole[5] = max(blocks, default=0.0)
        return StagePrice(*map(float, whole))

    def keeping_all(self) -> StagePlan:
        """The same without recomputation."""
        return dataclasses.replace(self, recomputed=())

    def at(self, first: int, last: int, place: SubMesh) -> StagePlan:
        """The same plan for the layers [first, last) on `place`."""
        return dataclasses.replace(self, first=first, last=last, place=place)

    def for_equal(self, graph: Graph) -> StagePlan | None:
        """The plan for `graph` (with forks), None unless that differs in names alone.

        Searching again would give the same plan: a search sees no names.
        """
        ops = _same_ops(self.graph, graph)
        if ops is None:
            return None

        def op(planned: PlannedOp) -> PlannedOp:
            return dataclasses.replace(planned, name=ops[planned.name].name)

        def edge(planned: PlannedEdge) -> PlannedEdge:
            return dataclasses.replace(planned, op=ops[planned.op].name)

        places = {old.module or old.name: ops[old.name] for old in self.graph.ops}

        def layer(planned: PlannedLayer) -> PlannedLayer:
            base, sharp, number = planned.name.partition("#")
            new = places.get(base)
            name = f"{new.module or new.name}{sharp}{number}" if new else planned.name
            return dataclasses.replace(
                planned, name=name, ops=tuple(ops[old].name for old in planned.ops)
            )

        return dataclasses.replace(
            self,
            graph=graph,
            ops={ops[name].name: op(planned) for name, planned in self.ops.items()},
            edges={(ops[n].name, i): edge(planned) for (n, i), planned in self.edges.items()},
            layers=tuple(map(layer, self.layers)),
            recomputed=tuple(tuple(ops[name].name for name in block) for block in self.recomputed),
        )

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


def _same_ops(old: Graph, new: Graph) -> dict[str, Op] | None:
    """Old name -> the operator at the same place, if all are alike and wired alike."""
    if len(old.ops) != len(new.ops) or old.batch != new.batch:
        return None
    tensors: dict[str, str] = {}
    for a, b in zip(old.ops, new.ops, strict=True):
        attrs = [{k: v for k, v in op.attrs.items() if k not in _NAMES} for op in (a, b)]
        if (a.kind, attrs[0], len(a.outputs)) != (b.kind, attrs[1], len(b.outputs)):
            return None
        if [tensors[name] for name in a.inputs] != list(b.inputs) or a.kind == "opaque":
            return None
        tensors.update(zip(a.outputs, b.outputs, strict=True))
    sizes = all(
        dataclasses.replace(old.tensors[a], name=b) == new.tensors[b] for a, b in tensors.items()
    )
    ends = [tensors.get(n) for n in old.outputs] == list(new.outputs)
    if not sizes or not ends or tensors.get(old.loss, "") != new.loss:
        return None
    return {a.name: b for a, b in zip(old.ops, new.ops, strict=True)}
