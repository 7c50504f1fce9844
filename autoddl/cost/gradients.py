"""Gradients that are there at a step's fullest moment beside one for each parameter.

    shared parameters   each reader's gradient is accumulated on its own, as the reader gives it
    the last product    with micro-batches a step is fullest as its backward pass begins: all
                        activations and all accumulated gradients are there, and the gradients of
                        the last product, or of the operator that reads its output (a softmax):

        max( gradients of the product - what its reader keeps, gradients of its reader )

as what the reader keeps is gone when the product's turn comes. With recomputation a step may be as
full as the backward pass of a block begins, and what counts are the gradients of its last product.
Without, and with one micro-batch, parameters' gradients come as activations go: nothing is added.
"""

from __future__ import annotations

from ..graph.graph import Graph, Op
from ..sbp.rules import find_rule
from .operator import computes
from .recompute import is_product


def is_shared(graph: Graph, tensor: str) -> bool:
    """True for a trained parameter with several readers."""
    is_param = graph.producers[tensor].kind == "param"
    return is_param and tensor in graph.needs_grad and len(graph.consumers[tensor]) > 1


def last_counts(graph: Graph, micro_batches: int, recomputes: bool) -> bool:
    """Whether the last product's gradients count as memory."""
    return micro_batches > 1 and not recomputes and not graph.is_stage


def last_product(graph: Graph) -> Op | None:
    """The last product or convolution that is trained."""
    return next((op for op in reversed(graph.ops) if is_product(graph, op)), None)


def reader_of(graph: Graph, product: Op) -> Op | None:
    """The one operator that computes with the output of `product`, or with a view of it."""
    op = product
    while len(op.outputs) == 1:
        readers = graph.consumers[op.outputs[0]]
        if len(readers) != 1:
            return None
        op = readers[0][0]
        rule = find_rule(op.kind)
        if rule is None or not any(o in graph.needs_grad for o in op.outputs):
            return None
        if computes(graph.spec(op), rule):
            return op
    return None
