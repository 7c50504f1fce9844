"""What a stage costs, from its plan's account: per micro-batch and once an iteration.

    c(m) = m each + once,   each = c(2) - c(1),   once = 2 c(1) - c(2)

for the account c of m micro-batches. What the fullest block that is run again holds meanwhile is
there for one micro-batch at a time, whatever is in flight. Computation is shared between the
forward and the backward pass as `cost.operators` prices them, communication half and half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cost.account import account, operator_seconds
from ..cost.model import CostModel
from ..cost.recompute import Recomputation
from ..graph.graph import Graph
from ..graph.placed import PlannedEdge, PlannedOp

_SEVERAL = 2  # micro-batches in flight: with more of them memory grows by equal steps
Columns = dict[str, NDArray[np.float64]]  # operator -> the fields of a StagePrice


def columns(
    graph: Graph,
    model: CostModel,
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
    again: Recomputation | None = None,
) -> Columns:
    """Per operator: forward_s, backward_s, once_s, fixed_bytes, stash_bytes, work_bytes.

    again: what is run again, in the backward pass; what a block holds meanwhile is `work_bytes` of
           its operators, also if another block holds more
    """
    again = replace(again or Recomputation(graph), in_flight=_SEVERAL)
    one = account(graph, model, 1, ops, edges, again)
    two = account(graph, model, 2, ops, edges, again)
    found = {}
    for op in graph.ops:
        placed = ops[op.name]
        forward_s, _ = operator_seconds(graph, model, op, placed)
        first, second = one[op.name], two[op.name]
        compute = second.compute_s - first.compute_s
        moved = second.communication_s - first.communication_s
        held = first.held
        counted = held.counted_bytes if op.name in again.block_of else 0.0
        kept = first.memory_bytes if op.kind == "input" else held.kept_bytes
        found[op.name] = np.array(
            [
                forward_s + moved / 2,
                compute - forward_s + moved / 2,
                max(2 * first.iteration_s - second.iteration_s, 0.0),
                first.memory_bytes - counted - (1 if op.kind == "input" else _SEVERAL) * kept,
                kept,
                held.inside_bytes,
            ]
        )
    return found
