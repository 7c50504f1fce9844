"""What a search found, as the plan that it becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..cost.liveness import required_bytes
from ..cost.memory import held_bytes
from ..cost.recompute import Recomputation
from ..cost.step_tensors import PlannedStep
from ..graph.placed import PlannedEdge, PlannedOp
from ..graph.regions import Blocks
from ..sbp.redistribute import PathTable
from ..search.problem import SearchResult
from .placements import place
from .tables.tables import Tables

NEAR_FREE = 0.05  # relative: hardly anything is lost to the memory limit
_WORKED_OUT = ("placed", "excess_bytes", "needed_bytes")


@dataclass(frozen=True)
class Candidate:
    """A choice and the tables that it is of; `seconds` of an iteration.

    paths: of the tables' mesh and prices
    """

    tables: Tables
    result: SearchResult
    paths: PathTable

    def knowing(self, other: Candidate | None) -> Candidate:
        """With what has been worked out of `other`, if that is the same choice."""
        if other is None or other.tables is not self.tables:
            return self
        if np.array_equal(other.result.choice, self.result.choice):
            known = ((name, other.__dict__.get(name)) for name in _WORKED_OUT)
            self.__dict__.update((name, value) for name, value in known if value is not None)
        return self

    @property
    def seconds(self) -> float:
        return self.result.cost

    @cached_property
    def placed(self) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
        """Placements and steps."""
        return place(self.tables, self.result.choice, self.paths)

    @cached_property
    def excess_bytes(self) -> float:
        """By how much a step's memory exceeds the limit; negative if it does not."""
        again, limit = self.tables.again, self.tables.model.limit_bytes
        if limit == math.inf:
            return -math.inf
        return max(self._added_up(again), self._fullest(again, limit)) - limit

    @cached_property
    def needed_bytes(self) -> float:
        """What a step's memory is, whatever the limit."""
        again = self.tables.again
        return max(self._added_up(again), self._fullest(again, math.inf))

    def fits_with(self, again: Recomputation) -> bool:
        """Whether a step fits if other blocks are recomputed."""
        limit = self.tables.model.limit_bytes
        return self._added_up(again) <= limit and self._fullest(again, limit) <= limit

    def _added_up(self, again: Recomputation) -> float:
        """Bytes of a step as the tables add them up."""
        tables = self.tables
        graph, parts = tables.grouping.graph, tables.micro_batches
        if again.blocks == tables.again.blocks:
            return self.result.memory
        held = held_bytes(graph, tables.model, parts, *self.placed, again)
        return sum(own.memory_bytes for own in held.values())

    def _fullest(self, again: Recomputation, limit_bytes: float) -> float:
        """Bytes of a step at its fullest moment, which may be more than what adds up.

        Above the limit perhaps of autoddl's executor alone.
        """
        tables = self.tables
        graph, model = tables.grouping.graph, tables.model
        mesh, optimizer, parts = model.cluster.mesh, model.optimizer, tables.micro_batches
        step = PlannedStep(graph, mesh, parts, optimizer, *self.placed, again)
        return required_bytes(step, model.memory_rules, limit_bytes)

    @property
    def key(self) -> tuple[int, Blocks]:
        """Its micro-batches, and the blocks that are run again."""
        return self.tables.micro_batches, self.tables.again.blocks

    @property
    def is_near_free(self) -> bool:
        """True if hardly anything is lost to the memory limit."""
        return self.seconds <= self.result.free_cost * (1 + NEAR_FREE)
