"""Tokens to experts and back, in index form.

`expert` and `position` [batch, length, k] say of each of a token's k choices which expert it goes
to and which of the expert's `capacity` places in this sequence it takes; a position beyond them
takes none. No two tokens of a sequence take the same place.

A device with some of the tokens fills their places and leaves zero in the others, which other
devices fill: the sum is the whole. One with some of the experts takes the tokens that go to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..layout import Shape
from ..signature import Attrs, OpSpec, Signature, rule
from .build import labelled

_CHOICES = ("batch", "length", None)
_TOKENS = ("batch", "length", "width")
_PLACES = ("experts", "batch", None, "width")


def _local_experts(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    del ins
    return {**op.attrs, "experts": outs[0][0]}


def _dispatch_flops(op: OpSpec) -> float:
    return float(op.outputs[0].numel)


@rule("moe_dispatch", local_attrs=_local_experts, flops=_dispatch_flops, saves="x1 x2")
def moe_dispatch(op: OpSpec) -> Iterator[Signature]:
    """(x, expert, position) -> [experts, batch, capacity, width]; attrs experts, capacity."""
    yield from labelled(op, (_TOKENS, _CHOICES, _CHOICES), (_PLACES,), linear=((0,),))


def _combine_flops(op: OpSpec) -> float:
    """Of each choice a product and a sum."""
    return 2.0 * op.outputs[0].numel * op.inputs[1].shape[-1]


@rule("moe_combine", flops=_combine_flops, saves="x0 x1 x2 x3")
def moe_combine(op: OpSpec) -> Iterator[Signature]:
    """(y [experts, batch, capacity, width], expert, position, weight) -> [batch, length, width]."""
    ins = (_PLACES, _CHOICES, _CHOICES, _CHOICES)
    yield from labelled(op, ins, (_TOKENS,), linear=((0,), (3,)))


def _grouped_flops(op: OpSpec) -> float:
    return 2.0 * op.outputs[0].numel * op.inputs[0].shape[1]


@rule("grouped_matmul", flops=_grouped_flops, heavy=True, saves="x0 x1 x2")
def grouped_matmul(op: OpSpec) -> Iterator[Signature]:
    """(x [rows, in], weight [experts, in, out], ends [experts]) -> y [rows, out].

    Rows up to ends[0] take the first expert's matrix, those from there to ends[1] the second's, and
    so on; rows behind the last end are zero.
    """
    ins = (("rows", "in"), ("experts", "in", "out"), (None,))
    yield from labelled(op, ins, (("rows", "out"),), linear=((0,), (1,)))
