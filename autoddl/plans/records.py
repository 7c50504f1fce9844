"""What a plan records of its layers, of the known schemes beside it, and of its search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlannedLayer:
    """A layer of the plan's table: a heavy operator and the light ones around it.

    topology:    the paper's (S0:(n,g), B:(n,g), S1:(n,g)), (nodes, GPUs) tuples
    signature:   the heavy operator's placements, inputs -> outputs
    alternative: the next best topology with everything else as planned, and what it would add to
                 the iteration (seconds); "" if there is none
    """

    name: str
    op: str
    ops: tuple[str, ...]
    topology: str
    signature: str
    alternative: str = ""
    alternative_extra_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """What a plan's file holds of it; `from_json` inverts it."""
        return {
            "name": self.name,
            "op": self.op,
            "topology": self.topology,
            "signature": self.signature,
            "alternative": self.alternative,
            "alternative_extra_s": self.alternative_extra_s,
            "ops": list(self.ops),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PlannedLayer:
        return PlannedLayer(**{**data, "ops": tuple(data["ops"])})


@dataclass(frozen=True)
class PlannedBaseline:
    """A known scheme on its best topology, as the planner priced it beside the plan.

    iteration_s, communication_s: seconds; None if the scheme fits on no topology
    memory_bytes: of one device; the least that was found if the scheme does not fit, None if it
                  does not divide the batch
    """

    name: str
    topology: str
    micro_batches: int
    memory_bytes: float | None
    iteration_s: float | None = None
    communication_s: float | None = None

    @property
    def fits(self) -> bool:
        return self.iteration_s is not None


@dataclass(frozen=True)
class SearchRecord:
    """How a plan was found. `seconds` is measured and stays out of its file (0 after loading).

    lower_bound_s: no plan in the searched space, with as many micro-batches and within the memory
                   limit, takes less; None if the algorithm proves nothing
    end:           "done", or what stopped the search: "budget" or "interrupted"
    """

    algorithm: str
    evaluations: int
    lower_bound_s: float | None = None
    end: str = "done"
    seconds: float = field(default=0.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """What a plan's file holds of it: the fields of `SearchRecord` but for `seconds`."""
        return {
            "algorithm": self.algorithm,
            "evaluations": self.evaluations,
            "lower_bound_s": self.lower_bound_s,
            "end": self.end,
        }


@dataclass(frozen=True)
class StagePrice:
    """What a run of layers costs on one part of the cluster, as a pipeline stage.

    forward_s, backward_s: of one micro-batch; once_s: once an iteration
    fixed_bytes: parameters and their state; stash_bytes: what each micro-batch in flight holds
    work_bytes: what is there for one micro-batch at a time
    """

    forward_s: float
    backward_s: float
    once_s: float = 0.0
    fixed_bytes: float = 0.0
    stash_bytes: float = 0.0
    work_bytes: float = 0.0

    def memory_bytes(self, in_flight: int) -> float:
        return self.fixed_bytes + in_flight * self.stash_bytes + self.work_bytes
