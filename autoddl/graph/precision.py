"""Rewrites a graph for mixed precision: 16 bits, but float32 where range or accuracy require it.

The 16 bits are float16 or bfloat16, which has float32's range and fewer digits. Parameters, and
therefore their gradients, have them; the float32 master copies that the optimizer
updates belong to its state (`cost.memory`). Operators whose rule demands float32 (losses,
variances), sums over all elements, and operators that only read results of these compute in
float32, and normalisations take their statistics and parameters so: these stay float32, as their
gradients are sums over all rows, which float16 overflows at a usual loss scale. A `cast` is
inserted wherever a tensor's precision differs from what its reader needs.
`in_precision` makes the graph.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ..cluster.spec import Device
from ..sbp.layout import TensorSpec
from ..sbp.signature import find_rule
from .graph import SOURCE_KINDS, Graph, Op, Tensor

PRECISIONS = ("float32", "float16", "bfloat16")
_NORMS = ("normalization", "layer_norm", "rms_norm")  # all inputs but the first are float32


def check_precision(precision: str, device: Device) -> None:
    """Raise ValueError unless `precision` is known and the machine file has a rate for it."""
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    if precision not in device.flops_per_s:
        raise ValueError(
            f"the machine file has no {precision} rate for its device of kind {device.kind!r}, so "
            f"nothing says what {precision} would gain; add device.flops_per_s.{precision}, or "
            "plan with precision='float32'"
        )


def in_precision(graph: Graph, precision: str) -> Graph:
    """`graph`, traced in float32, for computation in `precision`; one that is so already as it is.

    ValueError if the precision is unknown.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; use one of {', '.join(PRECISIONS)}")
    is_so = any(tensor.spec.dtype == precision for tensor in graph.tensors.values())
    return graph if precision == "float32" or is_so else _Halved(graph, precision).build()


def _is_wide(op: Op) -> bool:
    rule = find_rule(op.kind)
    return rule is not None and rule.float32


@dataclass
class _Halved:
    graph: Graph
    precision: str
    ops: list[Op] = field(default_factory=list)
    first: list[Op] = field(default_factory=list)  # sources that are cast, each with its cast
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def build(self) -> Graph:
        for op in self.graph.ops:
            self._add(op)
        losses = [op.inputs[0] for op in self.ops if op.kind == "loss"]
        placed = {op.name for op in self.first}
        return dataclasses.replace(
            self.graph,
            ops=(*self.first, *(op for op in self.ops if op.name not in placed)),
            tensors=self.tensors,
            loss=losses[0] if losses else "",
        )

    def _add(self, op: Op) -> None:
        dtype = self._dtype(op)
        if op.kind == "opaque":  # runs as the user has written it
            dtype = "float32"
        inputs = tuple(
            self._taken(name, "float32" if n and op.kind in _NORMS else dtype, op)
            for n, name in enumerate(op.inputs)
        )
        self.ops.append(dataclasses.replace(op, inputs=inputs))
        for name in op.outputs:
            self._put(self.graph.tensors[name], dtype)

    def _dtype(self, op: Op) -> str:
        """In which precision an operator computes."""
        if op.kind in ("input", "buffer") or _is_wide(op) or self._is_total(op):
            return "float32"
        if op.kind == "param" and self._is_of_norms(op):
            return "float32"
        floats = [n for n in op.inputs if self.tensors[n].spec.is_float]
        followed = len(floats) == 1 and self.graph.producers[floats[0]].kind not in (
            "input", "buffer", "param",
        )  # fmt: skip
        return self.tensors[floats[0]].spec.dtype if followed else self.precision

    def _is_of_norms(self, op: Op) -> bool:
        """True for a parameter that normalisations alone scale or shift by."""
        uses = self.graph.consumers[op.outputs[0]]
        return bool(uses) and all(reader.kind in _NORMS and n for reader, n in uses)

    def _is_total(self, op: Op) -> bool:
        """True for a sum over everything, which is a loss rather than an activation.

        So is what is made of such sums alone.
        """
        if any(self.graph.tensors[name].spec.numel != 1 for name in op.outputs):
            return False
        read = [self.tensors[name].spec for name in op.inputs if self.tensors[name].spec.is_float]
        follows = bool(read) and all(spec.numel == 1 and spec.dtype == "float32" for spec in read)
        return op.kind in ("reduce_sum", "reduce_mean") or follows

    def _put(self, tensor: Tensor, dtype: str) -> None:
        spec = tensor.spec
        if spec.dtype == "float32":
            spec = TensorSpec(spec.shape, dtype)
        self.tensors[tensor.name] = dataclasses.replace(tensor, spec=spec)

    def _taken(self, name: str, dtype: str, reader: Op) -> str:
        """The tensor in the precision in which it is read."""
        tensor = self.tensors[name]
        if tensor.spec.dtype == dtype or tensor.spec.dtype not in PRECISIONS:
            return name
        cast = f"{name}.{dtype}"
        if cast not in self.tensors:
            spec = TensorSpec(tensor.spec.shape, dtype)
            self.tensors[cast] = dataclasses.replace(tensor, name=cast, spec=spec)
            attrs = {"dtype": dtype, "pin_memory": False}
            op = Op(cast, "cast", (name,), (cast,), attrs, module=reader.module)
            source = self.graph.producers[name]
            if source.kind in SOURCE_KINDS:
                # not where its first reader is: that block would be unlike the others
                self.first += [source, op]
            else:
                self.ops.append(op)
        return cast
