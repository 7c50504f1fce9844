"""Parameters stored split over the axes that replicate them (ZeRO), gathered where they are used.

A parameter that its operator takes as `needed` and whose gradient comes as `given` is stored as
`stored`: `needed` with the data axes' B replaced by one split. It owes

    path(stored -> needed) + path(given -> stored)      seconds, once an iteration
    copies * local(stored) + local(needed)              bytes: weight, gradient, state; copy

`stored_split` gives `stored`, and `split_storage` rewrites a placed plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import Graph
from ..planned import PlannedEdge, PlannedOp
from ..sbp.layout import TensorSpec, is_even
from ..sbp.mesh import Mesh
from ..sbp.placement import B, NdSbp, S
from ..sbp.redistribute import PathTable
from ..search.group_table import stored_placement


def stored_split(spec: TensorSpec, needed: NdSbp, axes: Sequence[int], mesh: Mesh) -> NdSbp:
    """How the parameter is stored: split over those of `axes` that would replicate it.

    Along the first dim that divides evenly and is split on no other axis (there a gathering is one
    collective), else along the first that divides evenly, else whole over these axes.
    """
    kept = NdSbp(tuple(map(stored_placement, needed)))
    replicated = [a for a in axes if kept[a] == B]
    if not replicated:
        return kept
    dims = sorted(range(len(spec.shape)), key=lambda dim: dim in kept.split_dims())
    split = (kept.replace(replicated, S(dim)) for dim in dims)
    return next((nd for nd in split if is_even(spec.shape, nd, mesh)), kept)


def split_storage(
    graph: Graph,
    paths: PathTable,
    axes: Sequence[int],
    ops: Mapping[str, PlannedOp],
    edges: Mapping[tuple[str, int], PlannedEdge],
) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
    """The placed plan with each trained parameter of one use stored split over `axes`."""
    placed, steps = dict(ops), dict(edges)
    for op in graph.params:
        (tensor,) = op.outputs
        uses = graph.consumers[tensor]
        if len(uses) != 1 or tensor not in graph.needs_grad:
            continue
        (user, index), spec = uses[0], graph.tensors[tensor].spec
        needed, given = ops[user.name].ins[index], ops[user.name].grad_ins[index]
        assert given is not None
        stored = stored_split(spec, needed, axes, paths.mesh)
        placed[op.name] = PlannedOp(op.name, (), (stored,), (stored,), ())
        forward = paths.path(spec, stored, needed)
        backward = paths.path(spec, given, stored)
        steps[user.name, index] = PlannedEdge(user.name, index, forward, backward)
    return placed, steps
