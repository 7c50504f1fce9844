"""Converts the operators of a job to a `Graph`: canonical names, attributes and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import oneflow as flow

from ....graph.graph import Graph, Op, Tensor
from .batch import Scaling, is_same
from .canonical import canonical_attrs, kept_outputs
from .job.job import LazyJob
from .job.raw import RawJob, RawOp
from .simplify import Simplified
from .unknown import SOURCES, path_of


@dataclass
class Emitted:
    """A graph, its names of opaque operators by the job's, and captured tensors by its names."""

    graph: Graph
    opaque: dict[str, str]
    captured: dict[str, flow.Tensor]


def emit(
    simplified: Simplified,
    job: RawJob,
    lazy: LazyJob,
    scaling: Scaling,
    trainable: Mapping[str, bool],
    name: str,
    batch: int,
    known: Mapping[str, flow.Tensor],
) -> Emitted:
    """The graph of a simplified job.

    trainable: parameter name -> whether it needs a gradient
    known:     captured tensors that have names already, in the graph of another mode
    """
    emitter = _Emitter(job, lazy, scaling, trainable, known)
    for op in simplified.ops:
        if op.kind not in SOURCES:
            emitter.add(op)
    loss = ""
    outputs = simplified.roots[: len(lazy.outputs)]
    for root in simplified.roots:
        emitter.source(root)
    if lazy.loss:
        loss = emitter.names[simplified.roots[-1]]
        emitter.ops.append(Op(emitter.unique("loss"), "loss", (loss,), (), module="loss"))
    graph = Graph(
        ops=tuple(emitter.ops),
        tensors=emitter.tensors,
        outputs=tuple(emitter.names[root] for root in outputs),
        loss=loss,
        batch=batch,
        name=name,
    )
    graph.verify()
    return Emitted(graph, emitter.opaque, emitter.captured)


@dataclass
class _Emitter:
    job: RawJob
    lazy: LazyJob
    scaling: Scaling
    trainable: Mapping[str, bool]
    known: Mapping[str, flow.Tensor]
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # the job's tensor names -> the graph's
    opaque: dict[str, str] = field(default_factory=dict)
    captured: dict[str, flow.Tensor] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """`name`, with a number if an operator has it already."""
        count = self.used.get(name, 0)
        self.used[name] = count + 1
        return f"{name}_{count}" if count else name

    def add(self, op: RawOp) -> None:
        """Append `op`, and before it the sources that it is the first to read."""
        for name in op.reads:
            self.source(name)
        module = path_of(self.lazy.calls, op.call)
        attrs, batch = canonical_attrs(op, self.scaling.attrs.get(op.name, {}))
        name = self.unique(f"{module}/{op.kind}" if module else op.kind)
        if op.kind == "opaque":
            self.opaque[op.name] = name
            attrs["module"] = module
        self._append(name, op.kind, op.reads, kept_outputs(op), attrs, module, batch)

    def source(self, name: str) -> None:
        """Append the input, parameter or buffer `name` if it is one and is not there yet."""
        if name in self.names:
            return
        if name in self.lazy.inputs:
            index = self.lazy.inputs.index(name)
            self._append(self.unique(f"input.{index}"), "input", (), (name,), {"index": index})
        elif name in self.lazy.params:
            path = self.lazy.params[name]
            attrs = {"name": path, "trainable": self.trainable[path]}
            self._append(self.unique(path), "param", (), (name,), attrs, path.rpartition(".")[0])
        elif name in self.lazy.buffers:
            path = self.lazy.buffers[name]
            module = path.rpartition(".")[0]
            self._append(self.unique(path), "buffer", (), (name,), {"name": path}, module)
        else:
            assert name in self.lazy.captured, f"{name} has no producer"
            tensor = self.lazy.captured[name]
            same = (key for key, x in self.known.items() if is_same(tensor, x))
            key = next(same, f"#{len(self.known) + len(self.captured)}")
            self.captured[key] = tensor
            self._append(self.unique(key), "buffer", (), (name,), {"name": key})

    def _append(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: Mapping[str, object],
        module: str = "",
        batch: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        reads = tuple(self.names[i] for i in inputs)
        for index, output in enumerate(outputs):
            self.names[output] = name if len(outputs) == 1 else f"{name}:{index}"
            self.tensors[self.names[output]] = Tensor(
                self.names[output], self.job.specs[output], self.scaling.dims.get(output, ())
            )
        makes = tuple(self.names[o] for o in outputs)
        self.ops.append(Op(name, kind, reads, makes, dict(attrs), dict(batch or {}), module=module))
