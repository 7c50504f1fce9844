"""A plan's mesh with the fewest axes: neighbours that all tensors label alike become one.

OneFlow's nn.Graph builds jobs on one or two axes only. A boundary between atomic axes a and a + 1
stays where any operator, gradient or step of the plan treats them differently.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....plans import Plan
from ....sbp.placement import NdSbp

MOST_AXES = 2


def merged_axes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The atomic axes of each axis of the merged mesh. ValueError if there are more than two."""
    groups = [[0]] if plan.mesh.num_axes else [[]]
    for axis in range(1, plan.mesh.num_axes):
        if any(_parts(nd, axis) for nd in _placements(plan)):
            groups.append([])
        groups[-1].append(axis)
    if len(groups) > MOST_AXES:
        extents = " x ".join(str(merged_extent(plan, tuple(g))) for g in groups)
        raise ValueError(
            f"OneFlow's nn.Graph compiles meshes of at most {MOST_AXES} axes, and this plan needs "
            f"{len(groups)} ({extents}): its operators treat neighbouring axes differently. "
            "Use the model's prediction (without --exact) for it"
        )
    return tuple(map(tuple, groups))


def merged_extent(plan: Plan, group: tuple[int, ...]) -> int:
    """Devices along the axes `group` together."""
    size = 1
    for axis in group:
        size *= plan.mesh.extents[axis]
    return size


def _parts(nd: NdSbp, axis: int) -> bool:
    return nd[axis] != nd[axis - 1]


def _placements(plan: Plan) -> Iterator[NdSbp]:
    for op in plan.ops.values():
        for nd in (*op.ins, *op.outs, *op.grad_outs, *op.grad_ins):
            if nd is not None:
                yield nd
