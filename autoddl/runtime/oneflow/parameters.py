"""Parameters as OneFlow's optimizers take them.

A parameter is a OneFlow global tensor with the plan's placement, so that optimizers and their state
need nothing special; neighbouring mesh axes with the same label are merged, as fewer axes are
cheaper and better supported. On one device it is a local tensor, and so it is where it is split by
shares: OneFlow's own splits are balanced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import oneflow as flow

from ...sbp.layout import Shape, local_shape
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp, Placement


def new_parameter(
    shape: Shape, dtype: str, nd: NdSbp, mesh: Mesh, first: int, device: str
) -> flow.nn.Parameter:
    """A parameter [shape] placed as `nd`, whose values are undefined.

    first: the job's rank that is the mesh's rank 0
    """
    kind = getattr(flow, dtype)
    if mesh.size == 1 or (mesh.shares and nd[0].is_split):
        local = local_shape(shape, nd, mesh, flow.env.get_rank() - first)
        return flow.nn.Parameter(flow.empty(local, dtype=kind, device=device))
    extents, labels = merged_axes(shape, nd, mesh)
    ranks = (first + np.arange(mesh.size)).reshape(extents).tolist()
    placement = flow.placement(device, ranks=ranks)
    return flow.nn.Parameter(
        flow.empty(shape, dtype=kind, placement=placement, sbp=flow_sbp(labels))
    )


def local_part(tensor: flow.Tensor) -> flow.Tensor:
    """The local tensor that shares a parameter's, or its gradient's, memory."""
    with flow.no_grad():
        return tensor.to_local() if tensor.is_global else tensor.detach()


def merged_axes(shape: Shape, nd: NdSbp, mesh: Mesh) -> tuple[list[int], list[Placement]]:
    """Extents and labels with neighbouring equal labels merged, where the split stays the same.

    10 rows over (S0, S0) on 2 x 2 are 3, 2, 3, 2, over S0 on 4 they are 3, 3, 2, 2: not merged.
    """
    extents: list[int] = []
    labels: list[Placement] = []
    for extent, label in zip(mesh.extents, nd, strict=True):
        same = bool(labels) and labels[-1] == label
        if same and label.is_split:
            same = shape[label.dim] % (mesh.extent(nd.axes_of(label))) == 0
        if same:
            extents[-1] *= extent
        else:
            extents.append(extent)
            labels.append(label)
    return extents, labels


def flow_sbp(labels: Sequence[Placement]) -> list[Any]:
    """OneFlow's objects for `labels`."""
    kinds = {"B": flow.sbp.broadcast, "P": flow.sbp.partial_sum}
    return [flow.sbp.split(p.dim) if p.is_split else kinds[str(p)] for p in labels]
