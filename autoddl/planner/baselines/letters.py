"""Which kind of product a scheme asks of each operator with a weight.

Of a product Y = X W, S0 splits the rows of X, B the columns of W, S1 the summed dim (AutoDDL,
section 4.2). Megatron alternates B and S1, SUMMA has B everywhere.
"""

from __future__ import annotations

from ...graph.graph import SOURCE_KINDS, Graph, Op
from ...sbp.placement import NdSbp, Placement
from ..layers import topology_letters
from ..tables.groups import CompositeSignature, Group, rule_of

ANY = ""  # the letter of an operator that a scheme leaves open


def alternating(graph: Graph) -> dict[str, str]:
    """Megatron: products with a weight B, S1, B, ... in order, embeddings S1 (by vocabulary)."""
    letters = _data_parallel_convolutions(graph)
    products = [op for op in graph.ops if reads_weight(graph, op) and op.name not in letters]
    turns = [op for op in products if op.kind != "gather"]
    letters.update({op.name: "S1" for op in products if op.kind == "gather"})
    letters.update({op.name: ("B", "S1")[n % 2] for n, op in enumerate(turns)})
    return letters


def columns(graph: Graph) -> dict[str, str]:
    """SUMMA: the weight of every product split by columns, of an embedding by width."""
    letters = _data_parallel_convolutions(graph)
    products = [op for op in graph.ops if reads_weight(graph, op)]
    return {op.name: letters.get(op.name, "B") for op in products}


def _data_parallel_convolutions(graph: Graph) -> dict[str, str]:
    """Both schemes leave convolutions data parallel on all axes (AutoDDL section 5.1)."""
    return {op.name: "S0" for op in graph.ops if op.kind == "conv2d"}


def reads_weight(graph: Graph, op: Op) -> bool:
    """True for a heavy operator that reads a parameter."""
    if op.kind in SOURCE_KINDS or not any(graph.producers[i].kind == "param" for i in op.inputs):
        return False
    return rule_of(op).heavy


def has_weight(graph: Graph, group: Group) -> bool:
    return any(reads_weight(graph, op) for op in group.ops)


def deciding(group: Group) -> int:
    """The number of the group's heavy operator, of its head if it has none."""
    heavy = [n for n, op in enumerate(group.ops) if rule_of(op).heavy]
    return heavy[-1] if heavy else len(group.ops) - 1


def letter_of(group: Group, composite: CompositeSignature) -> str:
    """The topology letter of the group's heavy operator (its head's, if it has none)."""
    number = deciding(group)
    signature = composite.signatures[number]

    def one_axis(placements: tuple[Placement, ...]) -> tuple[NdSbp, ...]:
        return tuple(NdSbp((p,)) for p in placements)

    ins, outs = one_axis(signature.ins), one_axis(signature.outs)
    return topology_letters(group.ops[number], ins, outs)[0]


def splits_only_batch(graph: Graph, group: Group, composite: CompositeSignature) -> bool:
    """True if every tensor with a batch is split along it, and nothing else is split."""
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
