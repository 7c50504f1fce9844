"""The plan: the only hand-over from planning to the runtime.

A frozen value that can be checked, saved and loaded. It is a pipeline: it cuts the model into runs
of layers and places each on a mesh of its own (`plans.stage`). What is trained on one mesh alone is
a pipeline of one stage. An interleaved pipeline has several parts (chunks) of the model on each of
its stages: part v lies on stage v mod stages. With one chunk a part is a stage.

What follows from a plan is no part of it: its seconds and bytes are in `plans.figures`.

Its file is versioned JSON. The same inputs and seed give the same bytes: measured times of the
search are not in the file. What follows from the rest is not in it either: a stage's graph is that
of its layers, and its cluster the shape of its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from .._files import (
    FIELDS,
    OMIT,
    Count,
    FileKind,
    Name,
    OneOf,
    Positive,
    Size,
    Stored,
    Versioned,
    expect,
)
from ..cluster.spec import Cluster, StoredCluster
from ..graph.batch_norm import BatchNorm, batch_norm_of
from ..graph.cut import CutGraph
from ..graph.graph import Graph, Once, StoredGraph
from ..graph.hint_file import StoredHints
from ..graph.hints import Hints
from ..graph.regions import Blocks
from . import checks
from .schedule.orders import SCHEDULES, in_flight, num_strands
from .stage import PlannedBaseline, PlannedLayer, StageFile, StagePlan

# Of all stages alike
_ASKED = ("micro_batches", "seed", "optimizer", "comm_rule", "precision", "back_end", "ema")


@dataclass(frozen=True)
class Plan(Once):
    """A pipeline for training a traced graph on `cluster`, of one stage or more.

    cut:    the graph at the size of a micro-batch, and its layers
    stages: the parts of the model in order, `chunks` on each stage
    delay:  of the weights' half of backward passes, see `plans.schedule.orders`
    hints:  that it obeys; unhinted_s: seconds of an iteration of the plan without them
    """

    cut: CutGraph
    cluster: Cluster
    stages: tuple[StagePlan, ...]
    baselines: tuple[PlannedBaseline, ...] = ()
    schedule_name: str = "1f1b"
    delay: int | None = None
    chunks: int = 1
    hints: Hints = ()
    unhinted_s: float | None = None

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

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended the search."""
        return any(stage.search.end == "interrupted" for stage in self.stages)

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
        """ "float16" or "bfloat16" if the model computes in mixed precision."""
        return self.stages[0].precision

    @property
    def back_end(self) -> str:
        """Whose memory rules say what a step needs."""
        return self.stages[0].back_end

    @property
    def ema(self) -> bool:
        """Whether an average of the parameters is kept beside them."""
        return self.stages[0].ema

    @property
    def batch_norm(self) -> BatchNorm:
        """The rows that BatchNorm takes its statistics of."""
        return batch_norm_of(self.graph)

    @property
    def memory_limit_bytes(self) -> float:
        """Of a device, which the parts of its stage share."""
        return self.stages[0].memory_limit_bytes * self.chunks

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        return tuple(layer for stage in self.stages for layer in stage.layers)

    def stage_of(self, layer: PlannedLayer) -> StagePlan:
        """The stage that has a layer."""
        return next(stage for stage in self.stages if layer in stage.layers)

    @property
    def recomputed(self) -> Blocks:
        return tuple(block for stage in self.stages for block in stage.recomputed)

    @property
    def closest_baseline(self) -> PlannedBaseline | None:
        """The fastest of the known schemes that fit and obey all hints, None if there is none."""
        found = enumerate(self.baselines)
        fitting = [(b.iteration_s, n) for n, b in found if b.iteration_s and not b.breaks]
        return self.baselines[min(fitting)[1]] if fitting else None

    @property
    def stage(self) -> StagePlan:
        """The only stage. ValueError if there are several."""
        first, *others = self.stages
        if others:
            raise ValueError(
                f"the plan has {len(self.stages)} stages; this is for plans with one stage"
            )
        return first

    @classmethod
    def on_one_mesh(cls, stage: StagePlan, baselines: tuple[PlannedBaseline, ...] = ()) -> Plan:
        """The plan that has one stage, for the whole model on the whole cluster."""
        graph = stage.graph
        cut = CutGraph(graph, (tuple(op.name for op in graph.ops),))
        return cls(cut, stage.cluster.with_shares(()), (stage,), baselines)

    def keeping_all(self) -> Plan:
        """The same plan without recomputation."""
        return self.changed(recomputed=())

    def changed(self, **fields: Any) -> Plan:
        """The same plan with these fields in every stage."""
        stages = tuple(dataclasses.replace(stage, **fields) for stage in self.stages)
        return dataclasses.replace(self, stages=stages)

    def at_shares(self, shares: tuple[int, ...]) -> Plan:
        """The strategies of one mesh at other shares, whether or not they divide its dims."""
        stage = self.stage
        own = dataclasses.replace(stage, shares=shares, cluster=stage.cluster.with_shares(shares))
        return dataclasses.replace(self, stages=(own,), baselines=())

    def under(self, schedule: str, delay: int | None = None) -> Plan:
        """The same stages under another schedule; the memory limit may not be kept."""
        plan = dataclasses.replace(self, schedule_name=schedule, delay=delay)
        stages = tuple(
            dataclasses.replace(stage, in_flight=held)
            for stage, held in zip(self.stages, plan.in_flight, strict=True)
        )
        return dataclasses.replace(plan, stages=stages)

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Per part, the most micro-batches whose forward pass its schedule keeps at once."""
        held = in_flight(
            self.schedule_name, self.num_stages, self.micro_batches, self.chunks, self.delay
        )
        if len(self.stages) == 1 and self.stages[0].turns:
            return (num_strands(self.stages[0].turns),)
        return held

    def on(self, cluster: Cluster) -> Plan:
        """The same plan on other devices. ValueError unless there are as many."""
        self.check_cluster(cluster)
        stages = tuple(
            dataclasses.replace(stage, cluster=cluster.part(stage.place).with_shares(stage.shares))
            for stage in self.stages
        )
        return dataclasses.replace(self, cluster=cluster, stages=stages)

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        expect(graph, Graph, "the model is given as a Graph, which autoddl.trace gives")
        checks.check_model(self.graph, self.precision, graph)

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape and kinds of hosts."""
        expect(cluster, Cluster, "a plan is compared with a Cluster")
        checks.check_shape(self.cluster, cluster)

    def verify(self) -> None:
        """ValueError unless the stages are the model's layers, in order, on all devices.

        And unless in each, every path leads from its producer's placement to its reader's, what is
        recomputed are blocks of its graph's operators, and as many micro-batches are in flight as
        the schedule, or the turns of one mesh, have, and all hints are obeyed.
        """
        checks.verify_layers(self.cut, self.stages)
        checks.verify_places(self.cluster, self.stages, self.chunks)
        for stage in self.stages:
            checks.verify_stage(stage)
        checks.verify_in_flight(self.in_flight, self.stages)
        checks.verify_hints(self.cut, self.stages, self.hints)

    def to_json(self) -> dict[str, Any]:
        """What the file holds; `from_json` inverts it."""
        return PLAN_FILE.to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Verified. Raises ValueError on another version, and on a file that is not whole."""
        return PLAN_FILE.from_json(data)

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        PLAN_FILE.save(self, path)

    def dumps(self) -> str:
        """The file's text; `loads` inverts it."""
        return PLAN_FILE.dumps(self)

    @staticmethod
    def loads(text: str) -> Plan:
        """Read what `dumps` wrote. Raises ValueError if it is not a whole plan of this version."""
        return PLAN_FILE.loads(text)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read what `save` wrote. ValueError names the file and what is wrong with it."""
        return PLAN_FILE.load(path)


@dataclass(frozen=True)
class _PlanFile:
    """A plan as its file holds it."""

    VERSION: ClassVar[int] = 4

    micro_batches: Count
    seed: Size
    optimizer: Name
    comm_rule: Annotated[str, OneOf(("shared_nic", "plain"))]
    precision: Name
    back_end: Name
    batch_norm: BatchNorm
    schedule: Annotated[str, OneOf(SCHEDULES)]
    delay: Size | None
    chunks: Count
    baselines: tuple[PlannedBaseline, ...]
    cluster: StoredCluster
    stages: Annotated[tuple[StageFile, ...], Field(min_length=1)]
    cut: tuple[tuple[str, ...], ...]
    graph: StoredGraph
    ema: Annotated[bool, OMIT] = False
    hints: Annotated[StoredHints, OMIT] = ()
    unhinted_s: Annotated[Positive | None, OMIT] = None

    __pydantic_config__ = FIELDS


def _written(plan: Plan) -> _PlanFile:
    return _PlanFile(
        **{name: getattr(plan, name) for name in _ASKED},
        batch_norm=plan.batch_norm,
        schedule=plan.schedule_name,
        delay=plan.delay,
        chunks=plan.chunks,
        baselines=plan.baselines,
        cluster=plan.cluster,
        stages=plan.stages,
        cut=plan.cut.layers,
        graph=plan.graph,
        hints=plan.hints,
        unhinted_s=plan.unhinted_s,
    )


def _read(file: _PlanFile) -> Plan:
    """Verified."""
    cut = CutGraph(file.graph, file.cut)
    asked = {name: getattr(file, name) for name in _ASKED}
    cut.verify()
    stages = tuple(stage.on(cut, file.cluster, asked) for stage in file.stages)
    schedule = file.schedule, file.delay, file.chunks
    hinted = file.hints, file.unhinted_s
    plan = Plan(cut, file.cluster, stages, file.baselines, *schedule, *hinted)
    plan.verify()
    return plan


PLAN_FILE: FileKind[Plan] = FileKind(
    "plan",
    Annotated[Plan, Stored(Annotated[_PlanFile, Versioned()], _read, _written)],
    "plan the model again",
)
