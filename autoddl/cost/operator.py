"""What one operator costs on one device: seconds of computation and own collectives, memory.

    compute = forward (1 + ratio)   forward from `compute.forward_seconds`, ratio 2 if heavy, else 1
                                    or what was measured (`cost.measured`)
    inner   = (forward + backward count) x all-reduce of the reduced input shard
    memory  = bytes of the outputs, which the backward pass may need

Arguments and results are arrays over strategies, so that the search's tables and the account of one
plan use the same formulas.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cluster.operator_times import OperatorTimes
from ..cluster.spec import Device
from ..graph.graph import Op
from ..sbp.layout import TensorSpec
from ..sbp.signature import Inner, OpSpec, Rule
from .comm import CommModel
from .compute import BACKWARD_RATIO, forward_seconds
from .measured import measured_seconds, work

Array = NDArray[np.float64]
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


def saved_bytes(op: OpSpec, rule: Rule, out_bytes: Array, has_grad: bool) -> Array:
    """Bytes of the operator's outputs that stay until its backward pass."""
    return out_bytes if is_saved(op, rule, has_grad) else np.zeros_like(out_bytes)


def is_saved(op: OpSpec | Op, rule: Rule, has_grad: bool) -> bool:
    """Whether the operator's outputs stay until its backward pass."""
    return op.kind == "stage_input" or (has_grad and computes(op, rule))


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
