"""What the forward pass of an operator makes beside its outputs, by its rule's facets."""

from __future__ import annotations

from collections.abc import Sequence

from ..sbp.rules import find_rule
from ..sbp.signature import OpSpec


def workspace_bytes(op: OpSpec, ins: Sequence[float]) -> float:
    """Bytes that are needed only while it runs; `ins` are the inputs' local bytes."""
    return ins[0] if op.kind in ("reduce_sum", "reduce_mean") else 0.0


def extra_shares(op: OpSpec) -> tuple[float, float]:
    """Bytes kept for the backward pass beside inputs and outputs, for each byte of the first input

    and for each of the first output.
    """
    rule = find_rule(op.kind)
    return rule.beside(op) if rule else (0.0, 0.0)


def extra_bytes(op: OpSpec, ins: Sequence[float], outs: Sequence[float]) -> float:
    """Bytes kept for the backward pass beside inputs and outputs, of these local bytes."""
    of_input, of_output = extra_shares(op)
    return (of_input * ins[0] if of_input else 0.0) + (of_output * outs[0] if of_output else 0.0)


def lasting_shares(op: OpSpec) -> tuple[float, float]:
    """`extra_shares` of what is still there when the backward pass of the last product begins."""
    rule = find_rule(op.kind)
    return rule.beside(op) if rule and rule.beside_lasts else (0.0, 0.0)
