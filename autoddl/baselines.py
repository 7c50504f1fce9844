"""Known parallel schemes as restrictions of the search space, to compare with and to force.

    data parallel   every tensor with a batch is split along it, all weights are replicated
    Megatron        some axes are data parallel; on the others products split columns and rows in
                    turn
    forced          each axis has one kind of product: rows (S0), columns (B) or summed dim (S1)
                    of every heavy operator, so that (S0, B, S1) is a 3D scheme and (B, S1) a 2D one

AutoDDL section 4.2 names the special cases. A `Space` from here goes to `planner.find_plan`; what
the scheme leaves open (where light operators run, which redistributions) is searched.
"""

from __future__ import annotations

from collections.abc import Sequence

from .graph import SOURCE_KINDS, Graph, Op
from .sbp.mesh import Mesh
from .sbp.placement import NdSbp, Placement
from .search.group import CompositeSignature, Group, rule_of
from .search.group_table import Space
from .search.layers import topology_letters

LETTERS = ("S0", "B", "S1", "R")


def data_parallel(graph: Graph) -> Space:
    """Every tensor that has a batch dim is split along it; the rest is replicated or Partial."""

    graph = graph.with_forks()

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        del axis
        return _splits_only_batch(graph, group, composite)

    return Space(allowed=allowed)


def megatron(graph: Graph, data_axes: Sequence[int]) -> Space:
    """Data parallel on `data_axes`; on the others columns and rows of the weights in turn.

    Products with a weight alternate: columns (B), rows (S1), columns, ... An embedding is split
    along its vocabulary. A product that its letter does not divide is planned freely.
    """
    graph, chosen = graph.with_forks(), set(data_axes)
    weighted = [op for op in graph.ops if _reads_weight(graph, op)]
    products = [op.name for op in weighted if op.kind != "gather"]
    letter_of = {op.name: "S1" for op in weighted if op.kind == "gather"}
    letter_of.update({name: ("B", "S1")[n % 2] for n, name in enumerate(products)})

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        if axis in chosen:
            return _splits_only_batch(graph, group, composite)
        letters = {letter_of[op.name] for op in group.ops if op.name in letter_of}
        return not letters or _letter(group, composite) in letters

    return Space(allowed=allowed, strict=False)


def forced(graph: Graph, mesh: Mesh, letters: Sequence[str]) -> Space:
    """One kind of product per mesh axis for every heavy operator that has a weight.

    letters: "S0", "B", "S1" or "R" for each axis of `mesh`. An operator whose sizes the scheme does
    not divide is planned freely. Raises ValueError on a wrong number or an unknown letter.
    """
    if len(letters) != mesh.num_axes or any(letter not in LETTERS for letter in letters):
        raise ValueError(
            f"a scheme for the mesh {mesh} is {mesh.num_axes} of {', '.join(LETTERS)}, one per "
            f"axis; got {tuple(letters)}"
        )

    graph = graph.with_forks()

    def allowed(group: Group, composite: CompositeSignature, axis: int) -> bool:
        return not _has_weight(graph, group) or _letter(group, composite) == letters[axis]

    return Space(allowed=allowed, strict=False, split_channels=True)


def _reads_weight(graph: Graph, op: Op) -> bool:
    """True for a heavy operator that reads a parameter."""
    if op.kind in SOURCE_KINDS or not any(graph.producers[i].kind == "param" for i in op.inputs):
        return False
    return rule_of(op).heavy


def _has_weight(graph: Graph, group: Group) -> bool:
    return any(_reads_weight(graph, op) for op in group.ops)


def _letter(group: Group, composite: CompositeSignature) -> str:
    """The topology letter of the group's heavy operator (its head's, if it has none)."""
    heavy = [n for n, op in enumerate(group.ops) if rule_of(op).heavy] or [len(group.ops) - 1]
    signature = composite.signatures[heavy[-1]]

    def one_axis(placements: tuple[Placement, ...]) -> tuple[NdSbp, ...]:
        return tuple(NdSbp((p,)) for p in placements)

    ins, outs = one_axis(signature.ins), one_axis(signature.outs)
    return topology_letters(group.ops[heavy[-1]], ins, outs)[0]


def _splits_only_batch(graph: Graph, group: Group, composite: CompositeSignature) -> bool:
    for op, signature in zip(group.ops, composite.signatures, strict=True):
        names = (*op.inputs, *op.outputs)
        for name, placement in zip(names, (*signature.ins, *signature.outs), strict=True):
            batch_dims = graph.tensors[name].batch_dims
            if batch_dims:
                if not placement.is_split or placement.dim != batch_dims[0]:
                    return False
            elif placement.is_split:
                return False
    return True
