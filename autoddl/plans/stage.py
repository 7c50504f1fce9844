"""A stage of a plan: where every operator of its layers runs, and what is recorded of it.

The records tell of layers, of the known schemes beside the plan, of the search, and what a stage
was priced at.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from .._files import (
    FIELDS,
    OMIT,
    Count,
    Name,
    NotNegative,
    OneOf,
    Positive,
    Size,
    Stored,
    json_number,
)
from ..cluster.spec import Cluster
from ..cost.exchange import Exchange, exchanges
from ..graph.cut import CutGraph
from ..graph.graph import Graph, Once, Op
from ..graph.placed import PlannedEdge, PlannedOp, StoredEdges
from ..graph.regions import Blocks
from ..sbp.mesh import Mesh, SubMesh

_NAMES = ("name", "tensor")  # attributes that hold a name

COPIES, SUMMANDS, BATCH = "copies", "summands", "batch"
# In the order in which they are told; other words (`dim1`) come after the first
MEANINGS = {
    BATCH: "rows of the batch",
    "rows": "other rows of a product, such as the positions of a sequence",
    "matrices": "products that are independent of each other, such as the heads of attention",
    "out": "output features or channels",
    "in": "input features or channels, which are summed over: parts of the sum are added up",
    "vocabulary": "rows of the table that is looked up",
    SUMMANDS: "each device has a part of a sum that is not added up yet",
    COPIES: "so many devices have, or compute, the same",
}


class SplitPart(NamedTuple):
    """parts: into how many `word` is divided; hosts: over how many hosts (1: inside of each)."""

    word: Name
    parts: Count
    hosts: Count = 1


@dataclass(frozen=True)
class Split:
    """How an operator's work, or a tensor, is divided over a mesh: `batch 4 × out 2`.

    Every mesh axis divides one loop of an operator, or none, and one dim of a tensor, or none. Each
    word has the number of its parts, whose product is all devices, and over how many hosts they are
    spread, which `str` tells where it does not go without saying. On one device there are none.
    """

    parts: tuple[SplitPart, ...] = ()

    @staticmethod
    def of(words: Sequence[str], mesh: Mesh, order: Iterable[str] = MEANINGS) -> Split:
        """words: one for each mesh axis; order: in which they are told"""
        known = list(order)
        found = []
        for word in sorted(set(words), key=lambda w: (known.index(w) if w in known else 0.5, w)):
            nodes, gpus = mesh.topology(a for a, at in enumerate(words) if at == word)
            found.append(SplitPart(word, nodes * gpus, nodes))
        return Split(tuple(found))

    def __str__(self) -> str:
        nodes = math.prod(part.hosts for part in self.parts)
        devices = math.prod(part.parts for part in self.parts)
        tells = len(self.parts) > 1 and 1 < nodes < devices
        return " × ".join(
            f"{part.word} {part.parts}"
            + (f" over {part.hosts} hosts" if tells and part.hosts > 1 else "")
            for part in self.parts
        )

    def count(self, word: str) -> int:
        """The parts of a word; 1 if it is not divided."""
        return math.prod(part.parts for part in self.parts if part.word == word)


StoredSplit = Annotated[Split, Stored(tuple[SplitPart, ...], Split, attrgetter("parts"))]


@dataclass(frozen=True)
class PlannedLayer:
    """A layer of the plan's table: a heavy operator and the light ones around it.

    split:       how the heavy operator's work is divided
    topology:    the same as the paper's (S0:(n,g), B:(n,g), S1:(n,g)), (nodes, GPUs) tuples
    signature:   the heavy operator's placements, inputs -> outputs
    alternative: the next best topology with everything else as planned, its split, and what it
                 would add to the iteration (seconds); "" if there is none
    """

    name: Name
    op: Name
    split: StoredSplit
    topology: str
    signature: str
    alternative: str = ""
    alternative_split: StoredSplit = Split()
    alternative_extra_s: float = 0.0
    ops: tuple[str, ...] = field(kw_only=True)

    __pydantic_config__ = FIELDS


@dataclass(frozen=True)
class PlannedBaseline:
    """A known scheme on its best topology, as the planner priced it beside the plan.

    iteration_s, communication_s: seconds; None if the scheme fits on no topology. Communication
                              that runs beside computation does not count
    memory_bytes: of one device; the least that was found if the scheme does not fit, None if it
                  cannot split every operator, as of an odd batch
    breaks:       the first of the plan's hints that it does not obey, so it was not to be chosen
    """

    name: Name
    topology: str
    micro_batches: Count
    memory_bytes: NotNegative | None
    iteration_s: Positive | None = None
    communication_s: NotNegative | None = None
    breaks: Annotated[str, OMIT] = ""

    __pydantic_config__ = FIELDS

    @property
    def fits(self) -> bool:
        return self.iteration_s is not None


@dataclass(frozen=True)
class SearchRecord:
    """How a plan was found. `seconds` is measured and stays out of its file (0 after loading).

    lower_bound_s: no plan in the searched space, with as many micro-batches and within the memory
                   limit, takes less; None if the algorithm proves nothing
    end:           "done", or what stopped the search: "budget", "interrupted", or "size" where its
                   tables would have become too large; "memory" where the bound leaves a gap as it
                   does not know how full a step's fullest moment is
    """

    algorithm: Name
    evaluations: Size
    lower_bound_s: NotNegative | None = None
    end: Annotated[str, OneOf(("done", "budget", "interrupted", "size", "memory"))] = "done"
    seconds: Annotated[SkipJsonSchema[float], Field(exclude=True)] = field(
        default=0.0, compare=False
    )

    __pydantic_config__ = FIELDS


@dataclass(frozen=True)
class StagePrice:
    """What a run of layers costs on one part of the cluster, as a pipeline stage.

    forward_s, backward_s: of one micro-batch; once_s: once an iteration
    hidden_s: of the exchange once an iteration, beside the last backward pass; in none of these
    fixed_bytes: parameters and their state; stash_bytes: what each micro-batch in flight holds
    work_bytes: what is there for one micro-batch at a time
    """

    forward_s: float
    backward_s: float
    once_s: float = 0.0
    fixed_bytes: float = 0.0
    stash_bytes: float = 0.0
    work_bytes: float = 0.0
    hidden_s: float = 0.0

    def memory_bytes(self, in_flight: int) -> float:
        return self.fixed_bytes + in_flight * self.stash_bytes + self.work_bytes


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
    waits: Annotated[tuple[Size, ...], OMIT] = ()
    turns: Annotated[tuple[tuple[Size, Size], ...], OMIT] = ()
    shares: Annotated[tuple[Size, ...], OMIT] = ()

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
    waits:      of each bucket, how many operators' backward passes it waits for once it is full;
                () if none does
    turns:      whose turn it is of the micro-batches that are in flight on one mesh, see
                `plans.schedule.orders`; () if one is done before the next one starts
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

    def as_interrupted(self) -> StagePlan:
        """The same plan, marked as found before Ctrl-C ended the search."""
        search = dataclasses.replace(self.search, end="interrupted")
        return dataclasses.replace(self, search=search)

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
