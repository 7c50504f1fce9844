"""How OneFlow's compiler changes a placement, and the workspace that its collective needs.

The compiler knows collectives for one change of label: on all axes of the mesh at once, on the last
axis, or P -> B on the first. Everything else that does not end in Partial is a send and receive
between all devices, which packs what each device sends and receives:

    out (2 p + [p > 1]),   p the devices whose summands are added up

What ends in Partial where it did not start there is no collective: it goes through the host, as
does what stays Partial on one axis unless the other one has a collective of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .....cost.step_tensors import Way
from .....graph.placed import PlannedOp
from .....sbp.collectives import Step, placed_after
from .....sbp.mesh import Mesh
from .....sbp.placement import B, NdSbp, Placement

Change = tuple[Placement, Placement]
MOST_AXES = 2  # of a mesh that nn.Graph compiles


def merged_axes(ops: Iterable[PlannedOp], num_axes: int) -> tuple[tuple[int, ...], ...]:
    """The mesh with the fewest axes: neighbours that all tensors label alike are one.

    Gives the atomic axes of each. A boundary between axes a and a + 1 stays where any operator or
    gradient treats them differently.
    """
    parted: set[int] = set()
    for op in ops:
        for nd in (*op.ins, *op.outs, *op.grad_outs, *op.grad_ins):
            if nd is not None:
                parted.update(a for a in range(1, num_axes) if nd[a] != nd[a - 1])
    groups: list[list[int]] = []
    for axis in range(num_axes):
        if not groups or axis in parted:
            groups.append([])
        groups[-1].append(axis)
    return tuple(map(tuple, groups)) or ((),)


def compiled_route(source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
    """The compiler's.

    What becomes Partial is whole on these axes first, and then goes through the host.
    """
    target = placed_after(source, steps)
    pairs = zip(source, target, strict=True)
    whole = NdSbp(tuple(B if t.is_partial and s.is_split else s for s, t in pairs))
    if whole != source:
        return ("all_gather", source, whole), ("to_partial", whole, target)
    kinds = dict.fromkeys(step.kind for step in steps)
    return (("/".join(kinds), source, target),)


def num_changes(source: NdSbp, target: NdSbp) -> int:
    """Axes of the mesh on which the change is one collective, as few as possible."""
    return len(_merged(source, target))


def goes_through_host(source: NdSbp, target: NdSbp) -> bool:
    """True if the compiler has no collective for the change."""
    if any(t.is_partial and not s.is_partial for s, t in zip(source, target, strict=True)):
        return True
    axes = _merged(source, target)
    if len(axes) != 2 or not any(t.is_partial for _, t in axes):
        return False
    (s0, t0), (s1, t1) = axes
    if s0 == t0:
        return not (t1.is_broadcast or (s1.is_split and t1.is_split))
    return not (s1 == t1 and s0.is_partial and t0.is_broadcast)


def collective_workspace(
    source: NdSbp, target: NdSbp, before: float, after: float, mesh: Mesh
) -> float:
    """Bytes beside the result; `before` and `after` are the local bytes."""
    axes = _merged(source, target)
    changed = [n for n, (s, t) in enumerate(axes) if s != t]
    if len(axes) == 1:
        known = _packing(*axes[0], before, after)
    elif len(axes) == 2 and changed == [1] and not _reduce_scatters(*axes[1]):
        known = _packing(*axes[1], before, after)
    elif len(axes) == 2 and changed == [0] and axes[0][0].is_partial and axes[0][1].is_broadcast:
        known = 0.0
    else:
        known = None
    if known is not None:
        return known
    summands = 1
    for placement, extent in zip(source, mesh.extents, strict=True):
        summands *= extent if placement.is_partial else 1
    return after * (2 * summands + (summands > 1))


def _merged(source: NdSbp, target: NdSbp) -> list[Change]:
    """The change on each axis, neighbouring axes with the same one together."""
    axes: list[Change] = []
    for change in zip(source, target, strict=True):
        if not axes or axes[-1] != change:
            axes.append(change)
    return axes


def _reduce_scatters(source: Placement, target: Placement) -> bool:
    return source.is_partial and target.is_split


def _packing(source: Placement, target: Placement, before: float, after: float) -> float | None:
    """The workspace of the collective for one change; None if there is none."""
    if source.is_partial:
        return before if target.is_split and target.dim else 0.0
    if source.is_split and target.is_broadcast:
        return after if source.dim else 0.0
    if source.is_split and target.is_split:
        return before * (bool(source.dim) + bool(target.dim))
    return None
