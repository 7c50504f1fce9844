"""What a plan needs of a device, which the memory limit is held against.

    needed = max(executor's fullest moment, nn.Graph's)

The second counts where nn.Graph can compile the plan: its mesh merges to at most two axes, and no
operator runs collectives of its own.
"""

from __future__ import annotations

from .compiled_comm import MOST_AXES
from .memory_peak import memory_peak
from .planned_step import PlannedStep


def needed_bytes(plan: PlannedStep, limit_bytes: float) -> int:
    """Bytes of a device; if the executor alone exceeds the limit, its bytes."""
    executor = memory_peak(plan, "executor").bytes
    if executor > limit_bytes or not compiles(plan):
        return executor
    return max(executor, memory_peak(plan, "graph").bytes)


def compiles(plan: PlannedStep) -> bool:
    """True if nn.Graph can compile the placements; some kinds of operators it still refuses."""
    if any(op.inner_axes for op in plan.ops.values()):
        return False
    return len(plan.compiled_axes) <= MOST_AXES
