"""In which passes of a pipeline's part the devices of its stage communicate with each other."""

from __future__ import annotations

from collections.abc import Sequence

from ...plans import StagePlan
from ...sbp.collectives import Step


def communicating_passes(plan: StagePlan) -> frozenset[str]:
    """F, B (for the inputs) and W (for the weights), those with a collective in a micro-batch.

    Beside the last one's backward pass buckets of gradients may leave (`walk`).
    """
    found: set[str] = set()
    if any(op.inner_axes for op in plan.ops.values()):
        found |= {"F", "B"}
    for op in plan.graph.ops:
        for index, name in enumerate(op.inputs):
            edge = plan.edges.get((op.name, index))
            if edge is None:
                continue
            is_param = plan.graph.producers[name].kind == "param"
            if _moves(edge.forward) and (not is_param or edge.zero_stage == 3):
                found |= {"F", "B"} if is_param or plan.recomputed else {"F"}
            if _moves(edge.backward) and (not is_param or edge.zero_stage > 1):
                found |= {"B", "W"} if is_param else {"B"}
    return frozenset(found)


def _moves(steps: Sequence[Step]) -> bool:
    return any(not step.is_free for step in steps)
