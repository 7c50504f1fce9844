"""Bytes that each device needs at least, however evenly a graph is divided.

Parameters with their state, and what is kept for the backward pass, shared by all devices. A tensor
with e dims that grow with the batch has in M micro-batches, one at a time, the M**e-th part of its
bytes, so that one look at the graph tells of all M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...cost.model import CostModel
from ...cost.operators import is_saved
from ...cost.recompute import Recomputation
from ...graph.graph import Graph, Op
from .groups import rule_of


@dataclass(frozen=True)
class LeastBytes:
    """growing: exponent of the batch -> bytes of what grows so."""

    growing: Mapping[int, float]

    @staticmethod
    def of(graph: Graph, model: CostModel, again: Recomputation) -> LeastBytes:
        growing: dict[int, float] = {}
        for op in graph.ops:
            copies = _copies(graph, model, again, op)
            for name in op.outputs if copies else ():
                tensor = graph.tensors[name]
                exponent = len(tensor.batch_dims)
                known = growing.get(exponent, 0.0)
                growing[exponent] = known + copies * tensor.spec.bytes / model.cluster.mesh.size
        return LeastBytes(growing)

    def within(self, micro_batches: int) -> float:
        """With the graph's batch cut into so many."""
        return sum(size / micro_batches**exponent for exponent, size in self.growing.items())


def _copies(graph: Graph, model: CostModel, again: Recomputation, op: Op) -> float:
    """How often the outputs of an operator count."""
    has_grad = not graph.needs_grad.isdisjoint(op.outputs)
    if op.kind == "param":
        return model.parameter_copies if has_grad else 1
    if op.kind == "input":
        return bool(graph.consumers[op.outputs[0]])
    if op.name in graph.free_ops or not is_saved(op, rule_of(op), has_grad):
        return 0
    return again.output_weight(op)


def least_bytes(graph: Graph, model: CostModel, again: Recomputation | None = None) -> float:
    """Of a graph at its own batch."""
    return LeastBytes.of(graph, model, again or Recomputation(graph)).within(1)
