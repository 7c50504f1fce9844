"""Known parallel schemes as restrictions of the search space, to compare with and to force.

    data parallel   every tensor with a batch is split along it, all weights are replicated
    Megatron        some axes are data parallel; on the others products split columns and rows in
                    turn
    chosen          what another planner chose for each operator
    forced          each axis has one kind of product: rows (S0), columns (B) or summed dim (S1)
                    of every heavy operator, so that (S0, B, S1) is a 3D scheme and (B, S1) a 2D
                    one; or experts (E), with rows of all products that are not of experts

AutoDDL section 4.2 names the special cases. A `Space` from here goes to `planner.find_plan`; what
the scheme leaves open (where light operators run, which redistributions) is searched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph.graph import Graph
from ...sbp.mesh import Mesh
from ...sbp.placement import NdSbp
from ..tables.group_table import Space
from ..tables.groups import CompositeSignature, Group, composite_signatures, make_groups
from .families import (
    EXPERTS,
    alternating,
    deciding,
    has_weight,
    is_of_experts,
    letter_of,
    splits_only_batch,
)

Chosen = Mapping[str, tuple[tuple[NdSbp, ...], tuple[NdSbp, ...]]]
LETTERS = ("S0", "B", "S1", "R", EXPERTS)


def data_parallel(graph: Graph) -> Space:
    """Every tensor that has a batch dim is split along it; the rest is replicated or Partial."""

    graph = graph.with_forks()

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        del axis
        return splits_only_batch(graph, group, composite)

    return Space(allowed=allowed)


def megatron(graph: Graph, data_axes: Sequence[int]) -> Space:
    """Data parallel on `data_axes`; on the others columns and rows of the weights in turn.

    Products with a weight alternate: columns (B), rows (S1), columns, ... An embedding is split
    along its vocabulary. A product that its letter does not divide is planned freely.
    """
    graph, chosen = graph.with_forks(), set(data_axes)
    letters = alternating(graph)

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        if axis in chosen:
            return splits_only_batch(graph, group, composite)
        wanted = {letters[op.name] for op in group.ops if op.name in letters}
        return not wanted or letter_of(group, composite) in wanted

    return Space(allowed=allowed, strict=False)


def chosen(graph: Graph, placements: Chosen) -> tuple[Space, dict[str, bool]]:
    """What another planner chose, and for each operator that decides whether it is followed.

    placements: operator -> (its inputs', its outputs') placements. The product of a group of
    operators decides, or its last operator if it has none. Where no signature of ours places the
    operator so, its group is planned freely, as are the redistributions and the gradients'
    placements: the other planner is never made worse than it is.
    """
    graph = graph.with_forks()
    followed: dict[str, bool] = {}

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        number = deciding(group)
        op, signature = group.ops[number], composite.signatures[number]
        if op.name not in placements:
            return True
        ins, outs = placements[op.name]
        return signature.ins == tuple(nd[axis] for nd in ins) and signature.outs == tuple(
            nd[axis] for nd in outs
        )

    for group in make_groups(graph).groups:
        name = group.ops[deciding(group)].name
        if name in placements:
            ins, _ = placements[name]
            followed[name] = all(
                any(allowed(group, c, axis) for c in composite_signatures(graph, group))
                for axis in range(len(ins[0]) if ins else 0)
            )
    return Space(allowed=allowed, strict=False, split_channels=True), followed


def forced(graph: Graph, mesh: Mesh, letters: Sequence[str]) -> Space:
    """One kind of product per mesh axis for every heavy operator that has a weight.

    letters: "S0", "B", "S1", "R" or "E" for each axis of `mesh`. An operator whose sizes the scheme
    does not divide is planned freely. Raises ValueError on a wrong number or an unknown letter.
    """
    if len(letters) != mesh.num_axes or any(letter not in LETTERS for letter in letters):
        raise ValueError(
            f"a scheme for the mesh {mesh} is {mesh.num_axes} of {', '.join(LETTERS)}, one per "
            f"axis; got {tuple(letters)}"
        )

    graph = graph.with_forks()

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        if not has_weight(graph, group):
            return True
        rows = letters[axis] == EXPERTS and not any(is_of_experts(graph, o) for o in group.ops)
        return letter_of(group, composite) == ("S0" if rows else letters[axis])

    return Space(allowed=allowed, strict=False, split_channels=True)
