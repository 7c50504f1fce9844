"""What a stage costs, from its plan's account: per micro-batch and once an iteration.

    c(m) = m each + once,   each = c(2) - c(1),   once = 2 c(1) - c(2)

for the account c of m micro-batches. Computation is shared between the forward and the backward
pass as `cost.compute` prices them, communication half and half.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .cost.account import account
from .cost.compute import BACKWARD_RATIO
from .cost.model import CostModel
from .cost.recompute import Recomputation
from .graph import Graph
from .pipeline.partition import StagePrice
from .planned import PlannedEdge, PlannedOp
from .plans import Plan
from .sbp.rules import find_rule

Columns = dict[str, NDArray[np.float64]]  # operator -> the five fields of a StagePrice


def columns(
    graph: Graph,
    model: CostModel,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation | None = None,
) -> Columns:
    """Per operator: forward_s, backward_s, once_s, fixed_bytes, stash_bytes.

    again: what is run again, in the backward pass; what the fullest block holds meanwhile counts
           for every micro-batch in flight, so the memory is an upper bound then
    """
    one = account(graph, model, 1, ops, edges, again)
    two = account(graph, model, 2, ops, edges, again)
    found = {}
    for op in graph.ops:
        rule = find_rule(op.kind)
        ratio = BACKWARD_RATIO[rule is not None and rule.heavy]
        ratio += again.passes(op.name) - 1 if again else 0
        first, second = one[op.name], two[op.name]
        compute = second.compute_s - first.compute_s
        moved = second.communication_s - first.communication_s
        fixed = first.memory_bytes if op.kind == "param" else 0.0
        found[op.name] = np.array(
            [
                compute / (1 + ratio) + moved / 2,
                compute * ratio / (1 + ratio) + moved / 2,
                max(2 * first.iteration_s - second.iteration_s, 0.0),
                fixed,
                first.memory_bytes - fixed,
            ]
        )
    return found


def plan_price(plan: Plan) -> StagePrice:
    """Of a whole plan, as one stage."""
    parts = columns(plan.graph, plan.model, plan.ops, plan.edges, plan.again).values()
    return StagePrice(*map(float, np.sum(list(parts), axis=0)))
