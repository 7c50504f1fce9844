"""What a plan needs of a device, which the memory limit is held against.

    needed = max(executor's fullest moment, nn.Graph's)

The second counts where nn.Graph can compile the plan: its mesh merges to at most two axes, and no
operator runs collectives of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..graph import Graph
from ..planned import PlannedEdge, PlannedOp
from ..sbp.mesh import Mesh
from .compiled_comm import MOST_AXES, merged_axes
from .lifetime import Key, memory_peak
from .recompute import Recomputation


def needed_bytes(
    graph: Graph,
    mesh: Mesh,
    micro_batches: int,
    optimizer: str,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[Key, PlannedEdge],
    again: Recomputation,
    limit_bytes: float,
) -> int:
    """Bytes of a device; if the executor alone exceeds the limit, its bytes."""
    step = graph, mesh, micro_batches, optimizer, ops, edges
    executor = memory_peak(*step, "executor", again).bytes
    if executor > limit_bytes or not compiles(ops, mesh):
        return executor
    return max(executor, memory_peak(*step, "graph", again).bytes)


def compiles(ops: Mapping[str, PlannedOp], mesh: Mesh) -> bool:
    """True if nn.Graph can compile the placements; some kinds of operators it still refuses."""
    if any(op.inner_axes for op in ops.values()):
        return False
    return len(merged_axes(ops.values(), mesh.num_axes)) <= MOST_AXES
