"""Convolutions and transposed ones: the batch, the output or the input channels are split.

With several groups the channels are split at group boundaries only: each device convolves whole
groups, and the extents that carry that signature must divide their number (`Signature.limit`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ..layout import Shape
from ..placement import B, S
from ..signature import Attrs, OpSpec, Signature, rule
from .build import natural, partials, replicated, splits


def _flops(op: OpSpec) -> float:
    taps = math.prod(op.inputs[1].shape[1:])  # input channels of a group times the kernel's size
    return 2.0 * op.outputs[0].numel * taps


def _local_attrs(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """`filters` are those of the shard, and so are `groups` where whole groups are split."""
    del outs
    filters, groups = ins[1][0], op.attrs["groups"]
    if groups > 1:
        groups = groups * filters // op.inputs[1].shape[0]
    return {**op.attrs, "filters": filters, "groups": groups}


def _loops(op: OpSpec) -> tuple[Sequence[str], str]:
    del op
    return ("batch", "out"), "in"


@rule(
    "conv1d", "conv2d", "conv3d",
    local_attrs=_local_attrs, flops=_flops, heavy=True, loops=_loops, product="convolution",
    saves="other",
)  # fmt: skip
def conv(op: OpSpec) -> Iterator[Signature]:
    """(in [n, c, ...], weight [f, c / groups, ...]) -> out [n, f, ...].

    With channels last only the batch is split: OneFlow 0.9.0 does not compute on the CPU what that
    layout defines, so nothing can be said of its channels.
    """
    if op.attrs.get("data_format", "channels_first") == "channels_last":
        yield natural(op, (S(0), B), (S(0),))
        yield from partials(op, (0,), (1,))
        yield replicated(op)
    else:
        yield from _channels_first(op, ("f", "c"))


def _channels_first(op: OpSpec, weight: tuple[str, str]) -> Iterator[Signature]:
    """weight: labels of its first two dims; "c" are input channels, "f" output channels."""
    window = (None,) * (len(op.inputs[0].shape) - 2)
    if op.attrs["groups"] == 1:
        yield from splits(op, (("n", "c", *window), (*weight, *window)), (("n", "f", *window),))
    else:
        yield natural(op, (S(0), B), (S(0),))
        yield natural(op, (S(1), S(0)), (S(1),), limit=op.attrs["groups"])
    yield from partials(op, (0,), (1,))
    yield replicated(op)


def _transposed_flops(op: OpSpec) -> float:
    taps = math.prod(op.inputs[1].shape[1:])  # output channels of a group times the kernel's size
    return 2.0 * op.inputs[0].numel * taps


def _transposed_attrs(op: OpSpec, ins: tuple[Shape, ...], outs: tuple[Shape, ...]) -> Attrs:
    """As for `conv`; a transposed one's weight has the output channels of a group second."""
    del outs
    groups = op.attrs["groups"]
    if groups > 1:
        groups = groups * ins[1][0] // op.inputs[1].shape[0]
    return {**op.attrs, "filters": ins[1][1] * groups, "groups": groups}


@rule(
    "deconv1d", "deconv2d", "deconv3d",
    local_attrs=_transposed_attrs, flops=_transposed_flops, heavy=True, loops=_loops, saves="other",
)  # fmt: skip
def transposed_conv(op: OpSpec) -> Iterator[Signature]:
    """(in [n, c, ...], weight [c, f / groups, ...]) -> out [n, f, ...].

    OneFlow 0.9.0 has no module with channels last, whose weight's layout is in doubt.
    """
    if op.attrs.get("data_format", "channels_first") == "channels_last":
        yield replicated(op)
    else:
        yield from _channels_first(op, ("c", "f"))
