"""Debug mode: what runs is what was planned, checked after every operator.

Each local tensor must have the shape that its planned placement gives it, and ranks that differ
only along Broadcast axes must hold equal values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...sbp.layout import Shape, local_shape
from ...sbp.placement import B, NdSbp
from ..backend import Tensor
from ..comm.groups import Groups
from .program import Node

# replicas compute the same from the same, but not always in the same order
RELATIVE_TOLERANCE = 1e-5


def check_tensor(
    x: Tensor, what: str, shape: Shape, nd: NdSbp, groups: Groups
) -> NDArray[Any] | None:
    """AssertionError naming `what` unless local `x` is a part of a tensor [shape] placed as `nd`.

    Its values [elements], if they had to be read. All ranks must call it for the same tensor.
    """
    expected = local_shape(shape, nd, groups.mesh, groups.rank)
    got = tuple(x.shape)
    assert got == expected, (
        f"{what}: rank {groups.rank} holds {got}, but {nd} of {shape} gives it {expected}"
    )
    replicas = groups.along(nd.axes_of(B))
    if replicas.size == 1 or 0 in expected:
        return None
    gathered = replicas.all_gather(groups.backend.detached(x).reshape(-1))
    read = groups.backend.to_numpy(gathered).reshape(replicas.size, -1)
    rows = read.astype(np.float64)
    scale = np.abs(rows[np.isfinite(rows)]).max(initial=0.0)
    limit = RELATIVE_TOLERANCE * scale
    same = np.isclose(rows, rows[:1], rtol=0.0, atol=limit, equal_nan=True)
    assert same.all(), (
        f"{what}: planned as {nd}, but the replicas on ranks {replicas.ranks} differ "
        f"in {int((~same).any(axis=0).sum())} of {rows.shape[1]} elements"
    )
    return read[replicas.ranks.index(groups.rank)]


def note_nonfinite(found: dict[str, str], array: NDArray[Any], what: str) -> None:
    """Remember in `found` (`RunState.nonfinite`) the first tensor with such elements."""
    if np.issubdtype(array.dtype, np.floating):
        for name, has in (("nan", np.isnan), ("inf", np.isinf)):
            if name not in found and has(array).any():
                found[name] = what


def check_node(
    node: Node,
    what: str,
    tensors: Sequence[Tensor | None],
    placements: Sequence[NdSbp | None],
    groups: Groups,
) -> None:
    """Check an operator's inputs or outputs, or their gradients, as `what` says.

    The first numbers that are not finite are noted.
    """
    specs = node.context.spec.inputs if "input" in what else node.context.spec.outputs
    for index, (x, nd, spec) in enumerate(zip(tensors, placements, specs, strict=True)):
        if x is not None and nd is not None:
            label = f"{node.op.name} ({node.op.kind}), {what} {index}"
            array = check_tensor(x, label, spec.shape, nd, groups)
            if array is None:  # a read waits for all that was asked for, so one must do
                array = groups.backend.to_numpy(groups.backend.detached(x))
            note_nonfinite(node.context.state.nonfinite, array, label)


def check_gradients(node: Node, given: Sequence[Tensor | None], groups: Groups) -> None:
    """Check those of an operator's inputs that are wanted."""
    wanted = [g if wants else None for g, wants in zip(given, node.wanted, strict=True)]
    check_node(node, "gradient of input", wanted, node.planned.grad_ins, groups)
