"""Seconds of an operator that was measured on the device: `cluster.operator_times`.

    seconds(work) = straight lines between the measured points in logarithms; beyond them the rates
                    of the first and the last, but never less than starting an operator costs

`operator_key` says which operators are the same: of one kind and attributes, on tensors of the same
shapes but for the size of the batch. `work` is what grows with the batch and is shared by the
devices that divide the operator: FLOPs of operators that multiply matrices, else the bytes read and
written. `measured_seconds` computes the formula.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.operator_times import OperatorTimes
from ..cluster.spec import Device
from ..graph.graph import Graph, Op
from ..sbp.rules import find_rule
from ..sbp.signature import OpSpec, Rule

Array = NDArray[np.float64]
BATCH = "n"


def operator_key(graph: Graph, op: Op) -> str:
    """`conv2d nx3x32x32 float32, 16x3x3x3 float32 -> nx16x32x32 float32 {kernel_size=(3, 3), ...}`.

    Attributes that grow with the batch, and factors, do not count.
    """

    def names(tensors: tuple[str, ...]) -> str:
        found = []
        for name in tensors:
            tensor = graph.tensors[name]
            dims = (
                BATCH if dim in tensor.batch_dims else str(size)
                for dim, size in enumerate(tensor.spec.shape)
            )
            found.append(f"{'x'.join(dims) or 'scalar'} {tensor.spec.dtype}")
        return ", ".join(found)

    attrs = ", ".join(
        f"{name}={value}"
        for name, value in sorted(op.attrs.items())
        if name not in op.batch_attrs and _counts(value)
    )
    return f"{op.kind} {names(op.inputs)} -> {names(op.outputs)} {{{attrs}}}"


def _counts(value: Any) -> bool:
    whole = (bool, int, str)
    if isinstance(value, tuple):
        return all(isinstance(item, whole) for item in value)
    return isinstance(value, whole)


def times_of(device: Device, graph: Graph, op: Op) -> OperatorTimes | None:
    """What was measured of `op`, None if nothing."""
    return device.operators.get(operator_key(graph, op)) if device.operators else None


def work(op: OpSpec, rule: Rule, share: Array, moved_bytes: Array) -> Array:
    """Of one device, when `share` of them divide `op` and each moves `moved_bytes`."""
    return rule.flops(op) / share if rule.heavy else moved_bytes


def whole_work(op: OpSpec) -> float:
    """Of one device that runs all of `op`."""
    rule = find_rule(op.kind)
    assert rule is not None, f"no rule for {op.kind}"
    moved = float(sum(t.bytes for t in (*op.inputs, *op.outputs)))
    return float(work(op, rule, np.ones(1), np.array([moved]))[0])


def measured_seconds(
    times: OperatorTimes, launch_s: float, work_done: Array
) -> tuple[Array, Array]:
    """(forward, backward) of so much work, elementwise."""
    at, forward_s, backward_s = np.array(times.points).T
    return _between(at, forward_s, work_done, launch_s), (
        _between(at, backward_s, work_done, launch_s) if backward_s[-1] else 0.0 * work_done
    )


def _between(at: Array, seconds: Array, work_done: Array, least_s: float) -> Array:
    inside = np.clip(work_done, at[0], at[-1])
    # the backward pass of a small operator may measure as nothing
    logs = np.log(np.maximum(seconds, 1e-9))
    found = np.exp(np.interp(np.log(inside), np.log(at), logs)) * (work_done / inside)
    return np.maximum(found, least_s)
