"""A plan with pipeline stages: a plan for each stage, on its own part of the cluster.

Frozen, with a versioned JSON file, as `plans.Plan`. Each stage's plan is for the graph of its
layers (`pipeline.cut`) on its own mesh. What follows from these is computed and not stored: what
travels between the stages (`stage_links`), the schedule, its timeline and figures.

An interleaved pipeline has several parts (chunks) on each of its stages: part v of the model lies
on stage v mod stages. With one chunk a part is a stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .cluster.spec import Cluster
from .explain import format_bytes, format_seconds
from .files import write_atomically
from .graph import Graph
from .pipeline.costs import Costs
from .pipeline.cut import CutGraph
from .pipeline.make import make_schedule
from .pipeline.partition import StagePrice
from .pipeline.schedule import Schedule
from .pipeline.simulate import Timeline, peak_stash, simulate
from .pipeline.submesh import SubMesh
from .pipeline.verify import verify
from .plans import Plan
from .precision import in_precision
from .renamed import renamed
from .stage_links import PlannedStage, StageLinks

STAGED_PLAN_VERSION = 1
STAGED = "staged"


@dataclass(frozen=True)
class StagedPlan:
    """A pipeline for training `cut.graph` (traced, at the size of a micro-batch) on `cluster`.

    delay:  of the weights' half of backward passes, see `pipeline.orders`
    stages: the parts of the model in order, `chunks` on each stage
    """

    cut: CutGraph
    cluster: Cluster
    micro_batches: int
    schedule_name: str
    delay: int | None
    stages: tuple[PlannedStage, ...]
    chunks: int = 1

    # ---- checks

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        try:
            ours = in_precision(graph, self.precision)
            ours = ours.with_batch(self.cut.graph.batch) if graph.batch else ours
            same = ours.fingerprint == self.cut.graph.fingerprint
        except ValueError:
            same = False
        if not same:
            raise ValueError(
                f"the plan is for another model than the one given: it was made for "
                f"{self.cut.graph.name!r} with {len(self.cut.graph.ops)} operators, the given "
                f"model has {len(graph.ops)}; sizes or attributes may differ too. Plan this model "
                "anew"
            )

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape."""
        mine = (self.cluster.nodes, self.cluster.gpus_per_node)
        given = (cluster.nodes, cluster.gpus_per_node)
        if mine != given:
            raise ValueError(
                f"the plan is for {mine[0]} x {mine[1]} devices, the cluster has "
                f"{given[0]} x {given[1]}; plan for this cluster"
            )

    # ---- what follows from the stages

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

    # ---- JSON

    def to_json(self) -> dict[str, Any]:
        """What the file holds; `from_json` inverts it."""
        return {
            "version": STAGED_PLAN_VERSION,
            "kind": STAGED,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule_name,
            "delay": self.delay,
            "chunks": self.chunks,
            "cluster": self.cluster.to_json(),
            "layers": [list(layer) for layer in self.cut.layers],
            "stages": [
                {
                    "first": s.first,
                    "last": s.last,
                    "place": [s.place.first_node, s.place.nodes, s.place.first_gpu, s.place.gpus],
                    "plan": s.plan.to_json(),
                }
                for s in self.stages
            ],
            "graph": self.cut.graph.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StagedPlan:
        """Raises ValueError on another version, and on a file that is not whole."""
        if data.get("kind") != STAGED or data.get("version") != STAGED_PLAN_VERSION:
            raise ValueError(
                f"not a plan with stages of version {STAGED_PLAN_VERSION}; plan the model again"
            )
        try:
            plan = StagedPlan(
                CutGraph(Graph.from_json(data["graph"]), tuple(map(tuple, data["layers"]))),
                Cluster.from_json(data["cluster"]),
                data["micro_batches"],
                data["schedule"],
                data["delay"],
                tuple(
                    PlannedStage(
                        s["first"], s["last"], SubMesh(*s["place"]), Plan.from_json(s["plan"])
                    )
                    for s in data["stages"]
                ),
                data.get("chunks", 1),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"not a whole plan file ({type(error).__name__}: {error}); plan the model again"
            ) from error
        plan.verify()
        return plan

    def verify(self) -> None:
        """ValueError unless the stages are the model's layers, in order, on all devices."""
        bounds = [(s.first, s.last) for s in self.stages]
        expected = [0, *(last for _, last in bounds)]
        if [first for first, _ in bounds] != expected[:-1] or expected[-1] != len(self.cut.layers):
            raise ValueError(
                f"the stages {bounds} are not the {len(self.cut.layers)} layers in order; "
                "plan the model again"
            )
        if self.chunks < 1 or len(self.stages) % self.chunks:
            raise ValueError(
                f"{len(self.stages)} parts are not {self.chunks} on each stage; "
                "plan the model again"
            )
        first = self.stages[: self.num_stages]
        devices = sorted(d for s in first for d in s.place.devices)
        if any(s.place != first[v % len(first)].place for v, s in enumerate(self.stages)):
            raise ValueError("the parts of a stage lie on different devices; plan the model again")
        cluster = self.cluster
        if devices != [(n, g) for n in range(cluster.nodes) for g in range(cluster.gpus_per_node)]:
            raise ValueError(
                f"the stages do not lie on every device of {cluster} once; plan the model again"
            )
        for number, stage in enumerate(self.stages):
            graph = self.cut.stage(stage.first, stage.last).with_forks()
            if graph.fingerprint != stage.plan.graph.fingerprint:
                raise ValueError(
                    f"the plan of stage {number} is not for its layers; plan the model again"
                )

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        write_atomically(path, self.dumps())

    def dumps(self) -> str:
        """The file's text; `loads_plan` inverts it."""
        return json.dumps(self.to_json(), indent=1)

    # ---- words

    def explain(self) -> str:
        """The pipeline in words and numbers, then each stage's plan."""
        timeline = self.timeline
        chunks = "" if self.chunks == 1 else f" of {self.chunks} parts"
        what = "stage" if self.chunks == 1 else "part"
        delayed = "" if self.delay is None else f", weight gradients {self.delay} late"
        lines = [
            f"{self.cut.graph.name} on {self.cluster}, batch {self.batch} in "
            f"{self.micro_batches} micro-batches, {self.num_stages} stages{chunks}, "
            f"{self.schedule_name}{delayed}",
            f"predicted {format_seconds(self.iteration_s)} a step: bubble {timeline.bubble:.1%} "
            f"(transfers in no time: {self._bubble_without_transfers:.1%})",
        ]
        for n, stage in enumerate(self.stages):
            price, held = self.prices[n], self.schedule.stash[n % self.num_stages]
            memory = self.memory_bytes[n % self.num_stages]
            whole = "" if self.chunks == 1 else f" of stage {n % self.num_stages}"
            lines.append(
                f"{what} {n}: layers {stage.first}-{stage.last - 1} on {stage.place}: "
                f"forward {format_seconds(price.forward_s)}, "
                f"backward {format_seconds(price.backward_s)}, "
                f"once {format_seconds(price.once_s)}; "
                f"memory{whole} {format_bytes(memory)} with {held} micro-batches in flight"
            )
        for link, (forward, backward) in self.travel.reshards.items():
            back = "" if backward is None else f", gradient {format_seconds(backward.seconds)} back"
            skip = " (long skip)" if link.target > link.source + 1 else ""
            lines.append(
                f"{what} {link.source} -> {link.target}: {link.tensor} "
                f"{format_bytes(forward.spec.bytes)} by {forward.strategy} "
                f"{forward.source.nd} -> {forward.target.nd}, {format_seconds(forward.seconds)} "
                f"(at least {format_seconds(forward.bound_s)}){back}{skip}"
            )
        for name, stages in self.travel.shared_params.items():
            lines.append(
                f"parameter {name} is held by {what}s {', '.join(map(str, stages))}; "
                "their gradients are added up once a step"
            )
        for n, (stage, first) in enumerate(zip(self.stages, self.same_as, strict=True)):
            own = stage.plan.explain() if first == n else f"the plan of {what} {first}"
            lines += ["", f"{what} {n}", own]
        return "\n".join(lines)

    @property
    def _bubble_without_transfers(self) -> float:
        costs = self.costs
        free = Costs(costs.forward, costs.backward, costs.weight, {}, {})
        return simulate(self.schedule, free).bubble


def loads_plan(text: str) -> Plan | StagedPlan:
    """Read what `dumps` of either wrote. Raises ValueError if it is not a whole plan."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("not a plan file: the JSON is no object")
    return StagedPlan.from_json(data) if data.get("kind") == STAGED else Plan.from_json(data)


def load_plan(path: str | Path) -> Plan | StagedPlan:
    """Read a plan, with stages or without. ValueError names the file and what is wrong with it."""
    try:
        return loads_plan(Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
