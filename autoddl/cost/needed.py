"""What a plan needs of a device, which the memory limit is held against.

    needed = max(executor's fullest moment, nn.Graph's)

The second counts where nn.Graph can compile the plan: its mesh merges to at most two axes, and no
operator runs collectives of its own. With micro-batches, blocks that are run again and two axes it
counts a little more: which of its ways to chain the compiler takes is not known there, and its own
plans have been up to 8 % above what is predicted (benchmarks/results/memory/limits.md).
"""

from __future__ import annotations

from .compiled_comm import MOST_AXES
from .memory_peak import memory_peak
from .planned_step import PlannedStep

_UNSURE = 0.04  # of the compiled step's memory


def needed_bytes(plan: PlannedStep, limit_bytes: float) -> int:
    """Bytes of a device; if the executor alone exceeds the limit, its bytes."""
    executor = memory_peak(plan, "executor").bytes
    if executor > limit_bytes or not compiles(plan):
        return executor
    unsure = plan.micro_batches > 1 and plan.again.blocks and len(plan.compiled_axes) == MOST_AXES
    graph = memory_peak(plan, "graph").bytes
    return max(executor, round(graph * (1 + _UNSURE)) if unsure else graph)


def compiles(plan: PlannedStep) -> bool:
    """True if nn.Graph can compile the placements; some kinds of operators it still refuses."""
    if any(op.inner_axes for op in plan.ops.values()):
        return False
    return len(plan.compiled_axes) <= MOST_AXES
