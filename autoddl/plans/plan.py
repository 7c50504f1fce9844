"""The plan: the only hand-over from planning to the runtime.

A frozen value that can be explained, checked, saved and loaded (`plans.figures` has its fields).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import load_file, write_atomically
from ..cluster.spec import Cluster
from ..graph.cut import CutGraph
from ..graph.graph import Graph
from . import checks, file
from .figures import PlanFigures
from .records import PlannedBaseline
from .schedule.make import make_schedule
from .schedule.simulate import in_flight
from .stage import StagePlan


@dataclass(frozen=True)
class Plan(PlanFigures):
    """A pipeline for training a traced graph on `cluster`, of one stage or more.

    Its fields and its predicted figures are those of `PlanFigures`.
    """

    @classmethod
    def on_one_mesh(cls, stage: StagePlan, baselines: tuple[PlannedBaseline, ...] = ()) -> Plan:
        """The plan that has one stage, for the whole model on the whole cluster."""
        graph = stage.graph
        cut = CutGraph(graph, (tuple(op.name for op in graph.ops),))
        return cls(cut, stage.cluster, (stage,), baselines)

    def keeping_all(self) -> Plan:
        """The same plan without recomputation."""
        return self.changed(recomputed=())

    def changed(self, **fields: Any) -> Plan:
        """The same plan with these fields in every stage."""
        stages = tuple(dataclasses.replace(stage, **fields) for stage in self.stages)
        return dataclasses.replace(self, stages=stages)

    def under(self, schedule: str, delay: int | None = None) -> Plan:
        """The same stages under another schedule; the memory limit may not be kept."""
        plan = dataclasses.replace(self, schedule_name=schedule, delay=delay)
        held = in_flight(
            make_schedule(
                schedule, self.num_stages, self.micro_batches, chunks=self.chunks, delay=delay
            )
        )
        stages = tuple(
            dataclasses.replace(stage, in_flight=own)
            for stage, own in zip(self.stages, held, strict=True)
        )
        return dataclasses.replace(plan, stages=stages)

    def on(self, cluster: Cluster) -> Plan:
        """The same plan on other devices. ValueError unless there are as many."""
        self.check_cluster(cluster)
        stages = tuple(
            dataclasses.replace(stage, cluster=cluster.with_shape(*stage.place.shape))
            for stage in self.stages
        )
        return dataclasses.replace(self, cluster=cluster, stages=stages)

    def explain(self, layer: str | None = None) -> str:
        """The plan in words and numbers; with `layer`, that layer alone, step by step.

        ValueError if no layer has that name.
        """
        from .report import explain

        return explain(self, layer)

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        checks.check_model(self, graph)

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape."""
        checks.check_cluster(self, cluster)

    def verify(self) -> None:
        """ValueError unless the stages are the model's layers, in order, on all devices.

        And unless in each, every path leads from its producer's placement to its reader's.
        """
        checks.verify(self)

    def to_json(self) -> dict[str, Any]:
        """What the file holds; `from_json` inverts it."""
        return file.to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Raises ValueError on another version, and on a file that is not whole."""
        return file.from_json(Plan, data)

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        write_atomically(path, self.dumps())

    def dumps(self) -> str:
        """The file's text; `loads` inverts it."""
        return json.dumps(self.to_json(), indent=1)

    @staticmethod
    def loads(text: str) -> Plan:
        """Read what `dumps` wrote. Raises ValueError if it is not a whole plan of this version."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("not a plan file: the JSON is no object")
        return Plan.from_json(data)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read what `save` wrote. ValueError names the file and what is wrong with it."""
        return load_file(path, "plan", Plan.loads)
