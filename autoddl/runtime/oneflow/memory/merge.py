"""Merges a plan's mesh to the fewest axes, as nn.Graph builds jobs on one or two axes only."""

from __future__ import annotations

import math

from ....plans import Plan
from ....plans.stage_figures import stage_figures
from .compiled.collectives import MOST_AXES
from .compiled.step import compiled_axes as axes_of


def compiled_axes(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """The atomic axes of each axis of the merged mesh. ValueError if there are more than two."""
    groups = axes_of(stage_figures(plan.stage).step)
    if len(groups) > MOST_AXES:
        extents = " x ".join(str(merged_extent(plan, group)) for group in groups)
        raise ValueError(
            f"OneFlow's nn.Graph compiles meshes of at most {MOST_AXES} axes, and this plan needs "
            f"{len(groups)} ({extents}): its operators treat neighbouring axes differently. "
            "Use the model's prediction (without --exact) for it"
        )
    return groups


def merged_extent(plan: Plan, group: tuple[int, ...]) -> int:
    """The number of devices along all axes of `group`."""
    return math.prod(plan.stage.mesh.extents[axis] for axis in group)
