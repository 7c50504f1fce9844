"""A graph's operators in lazy mode on replicated global tensors, each in a name scope of its own.

The names `o<number>-...` of a job's operators tell which operator of the graph each represents.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn

from ....graph.graph import Graph, Op
from ....graph.placed import PlannedOp
from ....sbp.mesh import Mesh
from ....sbp.placement import NdSbp
from ..memory.lazy_ops import constant, issue
from ..trace.job.recorder import name_scope

SOURCES = ("param", "buffer")


def merged_axes(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """The mesh for OneFlow: one axis of nodes, and one of the devices of a node."""
    links = ("inter", "intra")
    groups = (tuple(a for a, x in enumerate(mesh.axes) if x.link == link) for link in links)
    return tuple(group for group in groups if group)


class Whole(nn.Module):
    """`forward` gives the loss; all tensors are replicated on `mesh`."""

    def __init__(self, graph: Graph, mesh: Mesh) -> None:
        super().__init__()
        self.graph, self.mesh = graph, mesh
        groups = merged_axes(mesh)
        ranks = np.arange(mesh.size).reshape([mesh.extent(group) for group in groups])
        self.placement = flow.placement("cpu", ranks=ranks.tolist())
        self.sbp = [flow.sbp.broadcast] * len(groups)
        self.held: dict[str, str] = {}
        for op in graph.ops:
            if op.kind in SOURCES:
                name = f"v{len(self.held)}"
                self.held[op.outputs[0]] = name
                value = self.empty(op)
                if op.kind == "param":
                    self.register_parameter(name, nn.Parameter(value, op.attrs["trainable"]))
                else:
                    self.register_buffer(name, value)

    def empty(self, op: Op) -> flow.Tensor:
        """A tensor with arbitrary values in place of a source's output."""
        spec = self.graph.tensors[op.outputs[0]].spec
        dtype = getattr(flow, spec.dtype)
        return flow.empty(*spec.shape, dtype=dtype, placement=self.placement, sbp=self.sbp)

    def inputs(self) -> list[Op]:
        found = [op for op in self.graph.ops if op.kind == "input"]
        return sorted(found, key=lambda op: op.attrs["index"])

    def forward(self, *given: flow.Tensor) -> flow.Tensor:
        values: dict[str, Any] = {}
        for tensor, name in self.held.items():
            kept = getattr(self, name)
            values[tensor] = kept if isinstance(kept, flow.Tensor) else kept.to(flow.Tensor)
        for op, value in zip(self.inputs(), given, strict=True):
            values[op.outputs[0]] = value
        whole = NdSbp.broadcast(self.mesh.num_axes)
        for number, op in enumerate(self.graph.ops):
            if op.kind in (*SOURCES, "input"):
                continue
            received = [values[name] for name in op.inputs]
            if op.kind == "loss":
                return received[0]
            placed = PlannedOp((whole,) * len(op.inputs), (whole,) * len(op.outputs), (), ())
            with name_scope(f"o{number}"):
                if op.kind == "constant":
                    made = [constant(op, self.placement, self.sbp)]
                else:
                    made = issue(self.graph, op, placed, self.mesh, received)
            values.update(zip(op.outputs, made, strict=False))
        raise AssertionError("the graph has no loss")
