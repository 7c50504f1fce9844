"""The plan: the only hand-over from planning to the runtime.

A frozen value that can be explained, checked, saved and loaded. It holds the graph it is for, the
cluster, the placement of every operator and the steps of every redistribution (`plans.figures`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import write_atomically
from ..cluster.spec import Cluster
from ..graph.graph import Graph
from . import checks, file
from . import explain as words
from .figures import PlanFigures
from .format import LayerText


@dataclass(frozen=True)
class Plan(PlanFigures):
    """Placements for training `graph` on `cluster`, micro-batch by micro-batch.

    Its fields and its predicted figures are those of `PlanFigures`.
    """

    def keeping_all(self) -> Plan:
        """The same plan without recomputation."""
        return dataclasses.replace(self, recomputed=())

    def explain(self, layer: str | None = None) -> str:
        """The plan in words and numbers; with `layer`, that layer alone, step by step.

        ValueError if no layer has that name.
        """
        return words.explain(self) if layer is None else words.explain_layer(self, layer)

    def saved_text(self) -> str:
        """What recomputation saves and costs; "" without any."""
        return words.saved_text(self)

    @property
    def layer_texts(self) -> list[LayerText]:
        """The layers with their costs, as the tables of a plan show them."""
        return words.layer_texts(self)

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        checks.check_model(self, graph)

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape."""
        checks.check_cluster(self, cluster)

    def verify(self) -> None:
        """ValueError unless every path leads from its producer's placement to its reader's.

        And unless what is recomputed are blocks of the graph's operators.
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
        try:
            return Plan.loads(Path(path).read_text())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
