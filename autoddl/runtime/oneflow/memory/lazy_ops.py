"""Reissues operators of a traced graph in OneFlow's lazy mode, on global tensors.

For most kinds the kernels of `runtime.oneflow.kernels` do this. Kinds whose kernel computes
something about its shard, or has a backward pass of its own, are issued here as OneFlow's single
operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import oneflow as flow
from oneflow import _C, Tensor

from ....graph.graph import Graph, Op
from ....graph.placed import PlannedOp
from ....sbp.mesh import Mesh
from ...kernel import ByInput, Context, Explicit, RunState
from ..kernels import KERNELS

Attrs = Mapping[str, Any]
Issue = Callable[[Attrs, Sequence[Tensor]], Sequence[Tensor]]

# a GPU's library has to be asked for the size of its workspace, or it runs without OneFlow's plan
NEED_DEVICE = {
    kind: "cuDNN must be asked for a convolution's algorithm, on the device"
    for kind in ("conv1d", "conv2d", "conv3d", "deconv1d", "deconv2d", "deconv3d")
}


def _layer_norm(attrs: Attrs, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    begin = attrs["begin_norm_axis"], attrs["begin_params_axis"], attrs["epsilon"]
    if len(inputs) == 3:
        x, *own = inputs
        return [_C.layer_norm_affine(x, *(p.to(x.dtype) for p in own), *begin)]
    return [_C.layer_norm(inputs[0], *begin)]


def _nll(attrs: Attrs, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    weight = inputs[2] if len(inputs) > 2 else None
    out = _C.nll_loss(inputs[0], inputs[1], weight, attrs["ignore_index"], "none")
    # the functional keeps the operator's second output, which target counts, to itself
    return [out, (inputs[1] != attrs["ignore_index"]).to(out.dtype)]


ISSUE: dict[str, Issue] = {
    "fork": lambda attrs, inputs: inputs,
    "gather": lambda attrs, inputs: [_C.gather(*inputs, attrs["axis"])],
    "nll": _nll,
    "layer_norm": _layer_norm,
    "softmax": lambda attrs, inputs: [_C.softmax(inputs[0], inputs[0].ndim - 1)],
    "log_softmax": lambda attrs, inputs: [_C.log_softmax(inputs[0], inputs[0].ndim - 1)],
    "dropout": lambda attrs, inputs: [_C.dropout(inputs[0], attrs["rate"])],
    "sparse_softmax_cross_entropy": lambda attrs, inputs: [
        _C.sparse_softmax_cross_entropy(*inputs)
    ],
    "reduce_mean": lambda attrs, inputs: [
        _C.reduce_mean(inputs[0], attrs["axis"], attrs["keepdims"])
    ],
    # the fused operator asks the device for its workspace; apart from the mean it is this one
    "binary_cross_entropy_with_logits_reduce_mean": lambda attrs, inputs: [
        _C.binary_cross_entropy_with_logits_loss(
            *inputs, weight=None, pos_weight=None, reduction="none"
        ).mean()
    ],
    "add_n": lambda attrs, inputs: [_C.add(list(inputs))],
}


def why_not(op: Op) -> str:
    """The reason why `op` cannot be compiled here; "" if it can."""
    if op.kind in NEED_DEVICE:
        return NEED_DEVICE[op.kind]
    if op.kind == "opaque":
        return f"the submodule {op.attrs['module']!r} runs as it is, and the plan does not hold it"
    if op.kind in ("normalization", "arange", "eye"):
        return "autoddl does not issue it in lazy mode"
    return "" if op.kind in ISSUE or op.kind in KERNELS else "autoddl knows no kernel for it"


def issue(
    graph: Graph, op: Op, planned: PlannedOp, mesh: Mesh, inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """The outputs of `op` on global tensors."""
    if op.kind in ISSUE:
        return ISSUE[op.kind](op.attrs, inputs)
    context = Context(op.name, graph.spec(op), planned, mesh, 0, RunState(0))
    result = KERNELS[op.kind](context, inputs, op.attrs)
    assert not isinstance(result, Explicit | ByInput), f"{op.kind} has a backward pass of its own"
    return result


def constant(op: Op, placement: Any, sbp: Sequence[Any]) -> Tensor:
    """A `constant` operator's output, placed."""
    attrs = op.attrs
    value = attrs["floating_value" if attrs["is_floating_value"] else "integer_value"]
    dtype = getattr(flow, attrs["dtype"])
    return flow.full(attrs["shape"], value, dtype=dtype, placement=placement, sbp=list(sbp))
