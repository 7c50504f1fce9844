"""The memory rules of OneFlow 0.9.0, which is not imported here: a `cost.memory_rules.MemoryRules`.

What operators hold in autoddl's executor is in `eager`, the step that nn.Graph compiles in
`compiled`. nn.Graph can compile a plan if its mesh merges to at most two axes and no operator runs
collectives of its own. With micro-batches, blocks that are run again and two axes the compiled
step counts a little more than its peak: which of its ways to chain the compiler takes is not known
there, and its own plans have been up to 8 % above what is predicted
(benchmarks/results/memory/limits.md).
"""

from __future__ import annotations

from ....cost.step_tensors import PlannedStep
from ....cost.tape import Peak
from . import eager as operators
from .compiled.collectives import MOST_AXES
from .compiled.step import chain_rules, compiled_axes, compiled_peaks, peak_by

__all__ = ["compiled_bytes", "compiled_peak", "compiles", "operators"]
_UNSURE = 0.04  # of the compiled step's memory


def compiles(plan: PlannedStep) -> bool:
    """True if nn.Graph can compile the placements; some kinds of operators it still refuses.

    A stage of a pipeline is not compiled, nor are uneven shares: OneFlow's own splits are balanced.
    """
    if plan.graph.is_stage or plan.again.in_flight > 1 or plan.mesh.shares:
        return False
    if any(op.inner_axes for op in plan.ops.values()):
        return False
    return len(compiled_axes(plan)) <= MOST_AXES


def compiled_peak(plan: PlannedStep) -> Peak:
    """The peak of the compiled step, in the way to chain that needs the least."""
    return min(compiled_peaks(plan).values(), key=lambda peak: peak.bytes)


def compiled_bytes(plan: PlannedStep, enough: int = 0) -> int:
    """The bytes of that peak that count for the memory limit; of another if no more than `enough`.

    One way to chain is most of the time that GPT-0.35B's first plan takes on 2x8 devices, and the
    executor's peak is mostly more.
    """
    unsure = plan.micro_batches > 1 and plan.again.blocks and len(compiled_axes(plan)) == MOST_AXES
    found: list[int] = []
    for rule in reversed(chain_rules(plan)):
        size = peak_by(plan, rule)[1].bytes
        found.append(round(size * (1 + _UNSURE)) if unsure else size)
        if found[-1] <= enough:
            break
    return min(found)
