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


_LARGEST = frozenset(
    f"{name}{n}d" for name in ("max_pool_", "adaptive_max_pool") for n in (1, 2, 3)
)
_LOSS = "sparse_softmax_cross_entropy"


def workspace_bytes(op: OpSpec, ins: Sequence[float]) -> float:
    """Bytes that are needed only while it runs; `ins` are the inputs' local bytes."""
    return ins[0] if op.kind in ("reduce_sum", "reduce_mean") else 0.0


def extra_shares(op: OpSpec) -> tuple[float, float]:
    """Bytes kept for the backward pass beside inputs and outputs, for each byte of the first input

    and for each of the first output.
    """
    if op.kind == "dropout":
        return 1 / op.inputs[0].item_bytes, 0.0  # a mask of one byte an element
    if op.kind in ("var", _LOSS):
        return 1.0, 0.0  # x less its mean; probabilities
    if op.kind in _LARGEST:
        return 0.0, 8 / op.outputs[0].item_bytes  # where each maximum was
    if op.kind == "layer_norm":
        return 0.0, 2 / max(1, op.inputs[0].shape[-1])  # mean and inverse deviation
    return 0.0, 0.0


def extra_bytes(op: OpSpec, ins: Sequence[float], outs: Sequence[float]) -> float:
    """Bytes kept for the backward pass beside inputs and outputs, of these local bytes."""
    of_input, of_output = extra_shares(op)
    return (of_input * ins[0] if of_input else 0.0) + (of_output * outs[0] if of_output else 0.0)


def lasting_shares(op: OpSpec) -> tuple[float, float]:
    """`extra_shares` of what is still there when the backward pass of the last product begins."""
    return (0.0, 0.0) if op.kind == _LOSS else extra_shares(op)
