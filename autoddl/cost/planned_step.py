"""A planned step: what runs on each device, and how large its tensors are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp
from ..sbp.mesh import Mesh
from .compiled_comm import merged_axes
from .recompute import Recomputation

Key = tuple[str, int]


@dataclass(frozen=True)
class PlannedStep:
    """graph: of one micro-batch, with placements `ops` and, by reader and input, steps `edges`.

    again: which blocks are run again before their backward pass
    """

    graph: Graph
    mesh: Mesh
    micro_batches: int
    optimizer: str
    ops: Mapping[str, PlannedOp]
    edges: Mapping[Key, PlannedEdge]
    again: Recomputation

    @cached_property
    def compiled_axes(self) -> tuple[tuple[int, ...], ...]:
        """The atomic axes of each axis of the mesh that OneFlow's compiler sees."""
        return merged_axes(self.ops.values(), self.mesh.num_axes)
