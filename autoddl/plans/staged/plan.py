"""A plan with pipeline stages: a plan for each stage, on its own part of the cluster.

A frozen value that can be explained, checked and saved, as `plans.Plan`. Each stage's plan is for
the graph of its layers (`graph.cut`) on its own mesh.

An interleaved pipeline has several parts (chunks) on each of its stages: part v of the model lies
on stage v mod stages. With one chunk a part is a stage.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import write_atomically
from ...cluster.spec import Cluster
from ...graph.graph import Graph
from . import checks, file
from . import explain as words
from .figures import StagedFigures


@dataclass(frozen=True)
class StagedPlan(StagedFigures):
    """A pipeline for training a traced graph on `cluster`.

    Its fields and its predicted figures are those of `StagedFigures`.
    """

    def explain(self) -> str:
        """The pipeline in words and numbers, then each stage's plan."""
        return words.explain(self)

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        checks.check_model(self, graph)

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape."""
        checks.check_cluster(self, cluster)

    def verify(self) -> None:
        """ValueError unless the stages are the model's layers, in order, on all devices."""
        checks.verify(self)

    def to_json(self) -> dict[str, Any]:
        """What the file holds; `from_json` inverts it."""
        return file.to_json(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> StagedPlan:
        """Raises ValueError on another version, and on a file that is not whole."""
        return file.from_json(StagedPlan, data)

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        write_atomically(path, self.dumps())

    def dumps(self) -> str:
        """The file's text; `loads_plan` inverts it."""
        return json.dumps(self.to_json(), indent=1)
