"""What the forward pass of an operator makes beside its outputs, kind by kind.

workspace   bytes while it runs
extra       bytes kept for its backward pass: a mask, statistics, probabilities
view        the output shares its input's place
in place    the output may take the place of an input that nobody reads any more
"""

from __future__ import annotations

from collections.abc import Sequence

from ..sbp.signature import OpSpec

VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "flatten", "identity", "fork"})
IN_PLACE = frozenset(
    {
        "relu", "scalar_mul", "scalar_add", "scalar_div", "add_n", "bias_add", "tril", "triu",
        "clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max",
    }
)  # fmt: skip


def workspace_bytes(op: OpSpec, ins: Sequence[float]) -> float:
    """Bytes that are needed only while it runs; `ins` are the inputs' local bytes."""
    return ins[0] if op.kind in ("reduce_sum", "reduce_mean") else 0.0


def extra_bytes(op: OpSpec, ins: Sequence[float], outs: Sequence[float]) -> float:
    """Bytes kept for the backward pass beside inputs and outputs."""
    if op.kind == "dropout":
        return ins[0] / op.inputs[0].item_bytes  # a mask of one byte an element
    if op.kind == "var":
        return ins[0]  # x less its mean
    if op.kind == "sparse_softmax_cross_entropy":
        return ins[0]  # probabilities
    if op.kind == "layer_norm":
        width = max(1, op.inputs[0].shape[-1])
        return 2 * outs[0] / width  # mean and inverse deviation
    return 0.0
