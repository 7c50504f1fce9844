"""Gradients that are there at a step's fullest moment beside one for each parameter.

    shared parameters   each reader's gradient is accumulated on its own, as the reader gives it
    the last product    with micro-batches a step is fullest as its backward pass begins: all
                        activations and all accumulated gradients are there, and the last product
                        takes its output's gradient and makes those of its inputs

With one micro-batch parameters' gradients come as activations go, and with recomputation blocks'
insides are gone by then: there nothing is added.
"""

from __future__ import annotations

from ..graph import Graph
from ..sbp.rules import find_rule


def is_shared(graph: Graph, tensor: str) -> bool:
    """True for a trained parameter with several readers."""
    is_param = graph.producers[tensor].kind == "param"
    return is_param and tensor in graph.needs_grad and len(graph.consumers[tensor]) > 1


def last_product(graph: Graph) -> str | None:
    """The name of the last product or convolution that is trained."""
    for op in reversed(graph.ops):
        rule = find_rule(op.kind)
        if rule is not None and rule.heavy and any(o in graph.needs_grad for o in op.outputs):
            return op.name
    return None


def last_counts(graph: Graph, micro_batches: int, recomputes: bool) -> bool:
    """Whether the last product's gradients count as memory."""
    return micro_batches > 1 and not recomputes and not graph.is_stage
