"""A plan with pipeline stages: a plan for each stage, on its own part of the cluster.

Frozen, with a versioned JSON file, as `plans.Plan`. Each stage's plan is for the graph of its
layers (`pipeline.cut`) on its own mesh. What follows from these is computed and not stored: which
tensor travels between which stages, how it is resharded, the schedule, its timeline and figures.
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
from .graph import Graph, Op
from .pipeline.costs import Costs
from .pipeline.cut import CutGraph
from .pipeline.make import make_schedule
from .pipeline.partition import StagePrice
from .pipeline.reshard.plan import ReshardPlan, plan_reshard
from .pipeline.reshard.unit_tasks import End
from .pipeline.schedule import Schedule
from .pipeline.simulate import Timeline, simulate
from .pipeline.submesh import SubMesh
from .pipeline.verify import verify
from .plans import Plan
from .stage_account import plan_price

STAGED_PLAN_VERSION = 1
STAGED = "staged"


@dataclass(frozen=True)
class PlannedStage:
    """Layers [first, last) of the cut graph on `place`, as `plan` says."""

    first: int
    last: int
    place: SubMesh
    plan: Plan

    @cached_property
    def price(self) -> StagePrice:
        return plan_price(self.plan)


@dataclass(frozen=True)
class Link:
    """`tensor` travels from stage `source` to stage `target`; its gradient, if any, back."""

    tensor: str
    source: int
    target: int


@dataclass(frozen=True)
class StagedPlan:
    """A pipeline for training `cut.graph` (traced, at the size of a micro-batch) on `cluster`.

    delay: of the weights' half of backward passes, see `pipeline.orders`
    """

    cut: CutGraph
    cluster: Cluster
    micro_batches: int
    schedule_name: str
    delay: int | None
    stages: tuple[PlannedStage, ...]

    # ---- checks

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        try:
            ours = graph.with_batch(self.cut.graph.batch) if graph.batch else graph
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

    @property
    def graph(self) -> Graph:
        """The whole graph, at the size of a micro-batch."""
        return self.cut.graph

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.cut.graph.batch * self.micro_batches

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """By source stage, then in graph order, then by target."""
        return tuple(
            Link(op.attrs["tensor"], source, target)
            for source, stage in enumerate(self.stages)
            for op in stage.plan.graph.ops
            if op.kind == "stage_output"
            for target in range(source + 1, len(self.stages))
            if self._end(target, "stage_input", op.attrs["tensor"])
        )

    def _end(self, stage: int, kind: str, tensor: str) -> Op | None:
        return self._ends.get((stage, kind, tensor))

    @cached_property
    def _ends(self) -> dict[tuple[int, str, str], Op]:
        return {
            (n, op.kind, op.attrs["tensor"]): op
            for n, stage in enumerate(self.stages)
            for op in stage.plan.graph.ops
            if op.kind in ("stage_input", "stage_output")
        }

    @cached_property
    def reshards(self) -> Mapping[Link, tuple[ReshardPlan, ReshardPlan | None]]:
        """How each link's tensor travels, and its gradient back."""
        found = {}
        for link in self.links:
            source, target = self.stages[link.source], self.stages[link.target]
            given = self._end(link.source, "stage_output", link.tensor)
            taken = self._end(link.target, "stage_input", link.tensor)
            assert given is not None and taken is not None
            spec = self.cut.graph.tensors[link.tensor].spec
            out, into = source.plan.ops[given.name], target.plan.ops[taken.name]
            forward = plan_reshard(
                spec, End(source.place, out.ins[0]), End(target.place, into.outs[0]), self.cluster
            )
            back, wanted = into.grad_outs[0], out.grad_ins[0]
            backward = None
            if back is not None and wanted is not None:
                ends = End(target.place, back), End(source.place, wanted)
                backward = plan_reshard(spec, *ends, self.cluster)
            found[link] = forward, backward
        return found

    @cached_property
    def costs(self) -> Costs:
        """What the simulator takes; a weights' half is half of the backward pass."""
        activation: dict[tuple[int, int], float] = {}
        gradient: dict[tuple[int, int], float] = {}
        for link, (forward, backward) in self.reshards.items():
            flow = link.source, link.target
            activation[flow] = activation.get(flow, 0.0) + forward.seconds
            gradient[flow] = gradient.get(flow, 0.0) + (backward.seconds if backward else 0.0)
        halves = tuple(stage.price.backward_s / 2 for stage in self.stages)
        forwards = tuple(stage.price.forward_s for stage in self.stages)
        return Costs(forwards, halves, halves, activation, gradient)

    @cached_property
    def schedule(self) -> Schedule:
        """Verified; its transfers are ordered by the stages' costs."""
        schedule = make_schedule(
            self.schedule_name,
            len(self.stages),
            self.micro_batches,
            delay=self.delay,
            flows={(link.source, link.target) for link in self.links},
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
        ends = [0.0] * len(self.stages)
        for span in self.timeline.spans:
            ends[span.stage] = max(ends[span.stage], span.end_s)
        return max(
            end + stage.price.once_s + exchange
            for end, stage, exchange in zip(ends, self.stages, self._exchange_s, strict=True)
        )

    @cached_property
    def shared_params(self) -> dict[str, tuple[int, ...]]:
        """Tied parameter (its tensor) -> the stages that hold it and add up its gradients."""
        found: dict[str, list[int]] = {}
        for n, stage in enumerate(self.stages):
            for op in stage.plan.graph.params:
                found.setdefault(op.outputs[0], []).append(n)
        return {name: tuple(stages) for name, stages in found.items() if len(stages) > 1}

    @cached_property
    def _exchange_s(self) -> list[float]:
        """Seconds that each stage spends on the gradients of shared parameters."""
        seconds = [0.0] * len(self.stages)
        cluster = self.cluster
        link = cluster.inter if cluster.nodes > 1 else cluster.intra
        for name, stages in self.shared_params.items():
            n_bytes = self.cut.graph.tensors[name].spec.bytes
            for n in stages:
                width = max(self.stages[n].place.nodes, 1)
                seconds[n] += 2 * link.transfer_seconds(n_bytes / width)
        return seconds

    @cached_property
    def memory_bytes(self) -> tuple[float, ...]:
        """Per stage, of one device, with as many micro-batches in flight as the schedule holds."""
        return tuple(
            stage.price.memory_bytes(held)
            for stage, held in zip(self.stages, self.schedule.stash, strict=True)
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
        devices = sorted(d for s in self.stages for d in s.place.devices)
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
        write_atomically(path, json.dumps(self.to_json(), indent=1))

    def summary_json(self) -> dict[str, Any]:
        """The figures as one JSON object (`autoddl plan --stages ... --json`)."""
        return {
            "model": self.cut.graph.name,
            "cluster": {
                "name": self.cluster.name,
                "nodes": self.cluster.nodes,
                "gpus_per_node": self.cluster.gpus_per_node,
            },
            "batch": self.batch,
            "micro_batches": self.micro_batches,
            "schedule": self.schedule_name,
            "delay": self.delay,
            "iteration_s": self.iteration_s,
            "bubble": self.timeline.bubble,
            "stages": [
                {
                    "first_layer": stage.first,
                    "last_layer": stage.last - 1,
                    "place": str(stage.place),
                    "forward_s": stage.price.forward_s,
                    "backward_s": stage.price.backward_s,
                    "once_s": stage.price.once_s,
                    "in_flight": held,
                    "memory_bytes": n_bytes,
                    "plan": stage.plan.summary_json(),
                }
                for stage, held, n_bytes in zip(
                    self.stages, self.schedule.stash, self.memory_bytes, strict=True
                )
            ],
            "transfers": [
                {
                    "tensor": link.tensor,
                    "source": link.source,
                    "target": link.target,
                    "bytes": forward.spec.bytes,
                    "strategy": forward.strategy,
                    "forward_s": forward.seconds,
                    "forward_bound_s": forward.bound_s,
                    "backward_s": backward.seconds if backward else 0.0,
                }
                for link, (forward, backward) in self.reshards.items()
            ],
        }

    # ---- words

    def explain(self) -> str:
        """The pipeline in words and numbers, then each stage's plan."""
        timeline = self.timeline
        delayed = "" if self.delay is None else f", weight gradients {self.delay} late"
        lines = [
            f"{self.cut.graph.name} on {self.cluster}, batch {self.batch} in "
            f"{self.micro_batches} micro-batches, {len(self.stages)} stages, "
            f"{self.schedule_name}{delayed}",
            f"predicted {format_seconds(self.iteration_s)} a step: bubble {timeline.bubble:.1%} "
            f"(transfers in no time: {self._bubble_without_transfers:.1%})",
        ]
        for n, stage in enumerate(self.stages):
            price, held = stage.price, self.schedule.stash[n]
            lines.append(
                f"stage {n}: layers {stage.first}-{stage.last - 1} on {stage.place}: "
                f"forward {format_seconds(price.forward_s)}, "
                f"backward {format_seconds(price.backward_s)}, "
                f"once {format_seconds(price.once_s)}; "
                f"memory {format_bytes(self.memory_bytes[n])} with {held} micro-batches in flight"
            )
        for link, (forward, backward) in self.reshards.items():
            back = "" if backward is None else f", gradient {format_seconds(backward.seconds)} back"
            skip = " (long skip)" if link.target > link.source + 1 else ""
            lines.append(
                f"stage {link.source} -> {link.target}: {link.tensor} "
                f"{format_bytes(forward.spec.bytes)} by {forward.strategy} "
                f"{forward.source.nd} -> {forward.target.nd}, {format_seconds(forward.seconds)} "
                f"(at least {format_seconds(forward.bound_s)}){back}{skip}"
            )
        for name, stages in self.shared_params.items():
            lines.append(
                f"parameter {name} is held by stages {', '.join(map(str, stages))}; "
                "their gradients are added up once a step"
            )
        for n, stage in enumerate(self.stages):
            lines += ["", f"stage {n}", stage.plan.explain()]
        return "\n".join(lines)

    @property
    def _bubble_without_transfers(self) -> float:
        costs = self.costs
        free = Costs(costs.forward, costs.backward, costs.weight, {}, {})
        return simulate(self.schedule, free).bubble


def load_plan(path: str | Path) -> Plan | StagedPlan:
    """Read a plan, with stages or without. ValueError names the file and what is wrong with it."""
    try:
        data = json.loads(Path(path).read_text())
        if not isinstance(data, dict):
            raise ValueError("not a plan file: the JSON is no object")
        return StagedPlan.from_json(data) if data.get("kind") == STAGED else Plan.from_json(data)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
