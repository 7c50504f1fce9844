"""A stage of a plan: where every operator of its layers runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, TypeVar

from .._files import FIELDS, OMIT, Count, Positive, Size, Stored, json_number
from ..cluster.spec import Cluster
from ..cluster.submesh import SubMesh
from ..cost.exchange import Exchange, exchanges
from ..graph.cut import CutGraph
from ..graph.graph import Graph, Op
from ..graph.placed import PlannedEdge, PlannedOp, StoredEdges
from ..graph.regions import Blocks
from ..sbp.mesh import Mesh
from .records import PlannedLayer, SearchRecord

Result = TypeVar("Result")
_NAMES = ("name", "tensor")  # attributes that hold a name


class Once:
    """A base of frozen values, of which functions outside of their class keep what follows.

    What they keep here is no part of them and is not compared.
    """

    def once(self, compute: Callable[[Any], Result]) -> Result:
        """`compute(self)`, computed when it is first asked for."""
        if compute not in self._known:
            self._known[compute] = compute(self)
        return self._known[compute]

    @cached_property
    def _known(self) -> dict[Callable[[Any], Any], Any]:
        return {}


def _place(numbers: tuple[int, int, int, int]) -> SubMesh:
    return SubMesh(*numbers)


def _limit(limit: float | None) -> float:
    return math.inf if limit is None else limit


@dataclass(frozen=True, kw_only=True)
class StageFile:
    """What a plan's file holds of a stage, beside what all stages share."""

    first: Size = 0
    last: Count = 1
    place: Annotated[SubMesh, Stored(tuple[Size, Size, Size, Size], _place, dataclasses.astuple)]
    memory_limit_bytes: Annotated[float, Stored(Positive | None, _limit, json_number)]
    recomputed: Blocks = ()
    in_flight: Count = 1
    search: SearchRecord
    layers: tuple[PlannedLayer, ...]
    ops: Mapping[str, PlannedOp]
    edges: StoredEdges
    buckets: Annotated[tuple[tuple[Size, ...], ...], OMIT] = ()
    turns: Annotated[tuple[tuple[Size, Size], ...], OMIT] = ()
    shares: Annotated[tuple[Count, ...], OMIT] = ()

    __pydantic_config__ = FIELDS

    def on(self, cut: CutGraph, cluster: Cluster, asked: Mapping[str, Any]) -> StagePlan:
        """The stage of a plan for the model `cut` on `cluster`; `asked` is what all share."""
        graph = cut.stage(self.first, self.last).with_forks()
        missing = [op.name for op in graph.ops if op.name not in self.ops]
        if missing:
            raise ValueError(f"the plan places no operator {missing[0]!r}")
        own = cluster.part(self.place).with_shares(self.shares)
        return StagePlan(graph=graph, cluster=own, **asked, **vars(self))


@dataclass(frozen=True, kw_only=True)
class StagePlan(StageFile, Once):
    """Placements for training layers [first, last) of a cut model on one mesh.

    graph:      of these layers, with forks, at the size of a micro-batch
    cluster:    the devices `place` of the plan's cluster, as a cluster of their own
    recomputed: blocks of operators of which only the inputs are kept for the backward pass; their
                forward pass is run again before it
    in_flight:  the most micro-batches whose forward pass is kept at once
    buckets:    gradients that travel together beside the backward pass, in the order in which they
                leave, by their numbers in `exchanges`; () if each travels by itself after it
    turns:      whose turn it is of the micro-batches that are in flight on one mesh, see
                `plans.schedule.turns`; () if one is done before the next one starts
    shares:     by which tensors are divided among runs of hosts, () for equal parts (`sbp.mesh`)
    precision:  "float16" or "bfloat16" if `graph` is in mixed precision
    back_end:   whose memory rules say what a step needs
    ema:        an average of the parameters is kept beside them, and counts in their memory
    """

    graph: Graph
    cluster: Cluster
    micro_batches: int
    seed: int
    optimizer: str
    comm_rule: str
    precision: str = "float32"
    back_end: str = "oneflow"
    ema: bool = False

    @property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.graph.batch * self.micro_batches

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The gradients of parameters that travel between devices."""
        return exchanges(self.graph, self.ops, self.edges)

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
            ops={ops[name].name: planned for name, planned in self.ops.items()},
            edges={(ops[n].name, i): edge(planned) for (n, i), planned in self.edges.items()},
            layers=tuple(map(layer, self.layers)),
            recomputed=tuple(tuple(ops[name].name for name in block) for block in self.recomputed),
        )


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
