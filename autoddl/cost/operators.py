"""What one operator costs on one device: seconds of computation and of its own collectives, memory.

**By the machine file's rates**, a roofline of FLOPs and memory bandwidth:

    forward  = max(flops / rate(dtype), bytes moved / bandwidth) + launch
    backward = twice the forward pass for operators that multiply matrices, else once

Small matmuls do not reach the rate of large ones. Where the machine file has the device's measured
efficiency, flops / rate of an operator that multiplies matrices is read off it instead: straight
lines between the points (FLOPs, seconds) in logarithms, and the rates of the first and the last
point beyond them.

**By a measurement of the operator itself** (`cluster.spec`), if there is one: straight
lines between the measured points in logarithms, but never less than it costs to start an operator.
`operator_key` says which operators are the same. `work` is what grows with the batch and is shared
by the devices that divide the operator: FLOPs of operators that multiply matrices, else the bytes
that are read and written.

    inner   = (forward + backward count) x all-reduce of the reduced input shard
    memory  = bytes of the outputs, which the backward pass may need

Arguments and results are arrays over strategies, so that the search's tables and the account of one
plan use the same formulas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.spec import Cluster, Curve, Device, Kind, OperatorTimes
from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..sbp.layout import TensorSpec
from ..sbp.signature import Inner, OpSpec, Rule, find_rule
from .collectives import CommModel

Array = NDArray[np.float64]
BACKWARD_RATIO: Mapping[bool, float] = {True: 2.0, False: 1.0}  # heavy operator -> ratio
BATCH = "n"  # stands for a dim that grows with the batch
_FREE_KINDS = ("fork", "loss", "param", "input", "buffer", "stage_input", "stage_output")


def computes(op: OpSpec | Op, rule: Rule) -> bool:
    """False for views and sources, which cost neither time nor memory of their own."""
    return not rule.is_view and op.kind not in _FREE_KINDS


def compute_seconds(
    op: OpSpec,
    rule: Rule,
    device: Device,
    share: Array,
    moved_bytes: Array,
    has_grad: bool,
    times: OperatorTimes | None = None,
) -> Array:
    """Forward and backward seconds; `share` devices divide the work, each moves `moved_bytes`.

    times: what was measured of the operator, None for the device's rates
    """
    if not computes(op, rule):
        return np.zeros_like(share)
    if times is not None:
        done = work(op, rule, share, moved_bytes)
        forward_s, backward_s = measured_seconds(times, device.launch_s, done)
        return forward_s + backward_s if has_grad else forward_s
    dtype = next((t.dtype for t in op.outputs if t.is_float), "float32")
    forward = forward_seconds(device, rule.flops(op) / share, moved_bytes, dtype, rule.heavy)
    return forward * (1 + (BACKWARD_RATIO[rule.heavy] if has_grad else 0))


@dataclass(frozen=True)
class Divided:
    """An operator among devices, in arrays over strategies.

    share, moved_bytes:           of `compute_seconds`, for the device that has the largest part
    by_first, first_moved_bytes:  whether the first mesh axis divides the work, and the bytes moved
                                  of tensors that it splits
    """

    share: Array
    moved_bytes: Array
    by_first: NDArray[np.bool_]
    first_moved_bytes: Array

    def seconds(
        self, cluster: Cluster, graph: Graph, op: Op, has_grad: bool, only: Kind | None = None
    ) -> Array:
        """`compute_seconds` of the kind of devices that takes longest, of each with its own part.

        only: of this kind instead
        HAP (Zhang et al., EuroSys 2024, section 3.2) lets devices wait at collectives only, so that
        of each run of operators without one the slowest device counts. To count it at each operator
        is more by 0.2 to 1.9 % of a step at most (VGG19, ViT, BERT on `hap_64`, if nothing were
        synchronised before the end), and can be added up.
        """
        spec, rule = graph.spec(op), find_rule(op.kind)
        assert rule is not None, f"{op.name} has no rule"
        found: list[Array] = []
        for kind in (only,) if only else cluster.kinds:
            share, moved = self.share, self.moved_bytes
            if kind.part != 1.0:
                own = share / kind.part if kind.part else np.inf
                share = np.where(self.by_first, own, share)
                moved = moved - (1 - kind.part) * self.first_moved_bytes
            times = times_of(kind.device, graph, op)
            found.append(compute_seconds(spec, rule, kind.device, share, moved, has_grad, times))
        return found[0] if len(found) == 1 else np.max(found, axis=0)


def reduced_spec(op: OpSpec, inner: Inner) -> TensorSpec:
    """The tensor that the operator's own all-reduces carry: its input with `dims` of size one."""
    tensor = op.inputs[inner.tensor]
    shape = tuple(1 if d in inner.dims else n for d, n in enumerate(tensor.shape))
    return TensorSpec(shape, tensor.dtype)


def inner_seconds(
    comm: CommModel, inner: Inner, axes: tuple[int, ...], local_bytes: Array, has_grad: bool
) -> Array:
    """Seconds of the all-reduces of `local_bytes` along `axes`."""
    alpha_s, beta_s_per_byte = comm.price("all_reduce", axes)
    return inner_count(inner, has_grad) * (alpha_s + beta_s_per_byte * local_bytes)


def inner_count(inner: Inner, has_grad: bool) -> int:
    return inner.forward + (inner.backward if has_grad else 0)


# ---- by the rates of the device


def at_rate(device: Device, flops_per_s: float) -> Device:
    """`device`, as if it did so many FLOP/s in any dtype. ValueError unless that is positive."""
    if not flops_per_s > 0:
        raise ValueError(f"the FLOP rate of a device must be positive, got {flops_per_s}")
    rates = {"float32": flops_per_s}
    return dataclasses.replace(device, flops_per_s=rates, efficiency={}, operators={})


def forward_seconds(
    device: Device,
    flops: NDArray[np.float64],
    moved_bytes: NDArray[np.float64],
    dtype: str,
    heavy: bool = False,
) -> NDArray[np.float64]:
    """Seconds of one forward pass, elementwise over arrays of strategies.

    heavy: the operator multiplies matrices
    """
    curve = device.curve_for(dtype) if heavy else ()
    arithmetic = curve_seconds(curve, flops) if curve else flops / device.flops_for(dtype)
    traffic = moved_bytes / device.memory_bandwidth_bytes_per_s
    return np.maximum(arithmetic, traffic) + device.launch_s


def curve_seconds(curve: Curve, flops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds of matmuls of so many FLOPs by points (FLOPs, FLOP/s); never less for more FLOPs."""
    at, rate = np.array(curve).T
    inside = np.clip(flops, at[0], at[-1])
    between = np.exp(np.interp(np.log(inside), np.log(at), np.log(at / rate)))
    return between * (flops / inside)


# ---- by measurements of operators


def operator_key(graph: Graph, op: Op) -> str:
    """`conv2d nx3x32x32 float32, 16x3x3x3 float32 -> nx16x32x32 float32 {kernel_size=(3, 3), ...}`.

    Attributes that grow with the batch, factors, and what part is taken do not count.
    """
    rule = find_rule(op.kind)
    aside = {*op.batch_attrs, *(rule.part if rule else ())}

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
        if name not in aside and _counts(value)
    )
    return f"{op.kind} {names(op.inputs)} -> {names(op.outputs)} {{{attrs}}}"


def _counts(value: Any) -> bool:
    whole = (bool, int, str)
    if isinstance(value, tuple):
        return all(isinstance(item, whole) for item in value)
    return isinstance(value, whole)


def times_of(device: Device, graph: Graph, op: Op) -> OperatorTimes | None:
    """The measured seconds of `op`; None if it was not measured."""
    return device.operators.get(operator_key(graph, op)) if device.operators else None


def work(op: OpSpec, rule: Rule, share: Array, moved_bytes: Array) -> Array:
    """The work of one device when `share` devices divide `op` and each moves `moved_bytes`."""
    return rule.flops(op) / share if rule.heavy else moved_bytes


def whole_work(op: OpSpec) -> float:
    """The work of one device that runs all of `op`."""
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


@dataclass(frozen=True)
class Timed:
    """How many of the operators that compute have been timed; both 0 on a device without any."""

    timed: int
    computing: int


def timed_operators(device: Device, graph: Graph) -> Timed:
    """The count for `graph` on `device`, by `operator_key`."""
    found: list[bool] = []
    for op in graph.ops if device.operators else ():
        rule = find_rule(op.kind)
        if rule is not None and computes(graph.spec(op), rule):
            found.append(times_of(device, graph, op) is not None)
    return Timed(sum(found), len(found))


def alone_s(device: Device, cluster: Cluster, graph: Graph) -> float:
    """Seconds of computation of the whole model on one device."""
    alone = Cluster(cluster.name, 1, 1, device, cluster.intra, cluster.inter)
    known: dict[tuple[int, bool], float] = {}  # equal ones take as long
    found: list[float] = []
    for op in graph.ops:
        if op.kind in SOURCE_KINDS or op.name in graph.free_ops:
            continue
        has_grad = any(name in graph.needs_grad for name in op.outputs)
        key = graph.alike[op.name], has_grad
        if key not in known:
            spec = graph.spec(op)
            moved = np.array([float(sum(t.bytes for t in (*spec.inputs, *spec.outputs)))])
            whole = Divided(np.ones(1), moved, np.zeros(1, dtype=bool), np.zeros(1))
            known[key] = float(whole.seconds(alone, graph, op, has_grad)[0])
        found.append(known[key])
    return sum(found)


def speeds(cluster: Cluster, graph: Graph) -> tuple[float, ...]:
    """How fast each run of hosts computes the model, the fastest 1."""
    devices = {group: cluster.device_of(group) for group in set(cluster.runs)}
    alike = {g: next(h for h in devices if devices[h] == own) for g, own in devices.items()}
    seconds = {g: alone_s(devices[g], cluster, graph) for g in set(alike.values())}
    return tuple(min(seconds.values()) / seconds[alike[group]] for group in cluster.runs)
