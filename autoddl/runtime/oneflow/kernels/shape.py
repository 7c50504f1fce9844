"""Operators that rearrange elements, and those that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow import _C, Tensor

from ....sbp.signature import Attrs
from ...kernel import Context
from .registry import kernel


@kernel("reshape")
def reshape(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out of `shape`."""
    return [inputs[0].reshape(*attrs["shape"])]


@kernel("squeeze")
def squeeze(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out without the dims `axes`, of size 1."""
    return [_C.squeeze(inputs[0], attrs["axes"])]


@kernel("expand_dims")
def expand_dims(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out with a new dim `axis` of size 1."""
    return [_C.expand_dims(inputs[0], attrs["axis"])]


@kernel("transpose")
def transpose(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """input -> output; dim d of the output is dim perm[d] of the input."""
    return [inputs[0].permute(*attrs["perm"])]


@kernel("expand")
def expand(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out of `expand_shape`."""
    return [_C.expand(inputs[0], attrs["expand_shape"])]


@kernel("narrow")
def narrow(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> `length` elements of dim `dim`, from `start`."""
    return [inputs[0].narrow(attrs["dim"], attrs["start"], attrs["length"])]


@kernel("slice")
def slice_(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> y; start, stop and step of each dim."""
    return [_C.slice(inputs[0], attrs["start"], attrs["stop"], attrs["step"])]


@kernel("slice_update")
def slice_update(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(ref, value) -> ref with `value` in a slice."""
    return [_C.slice_update(*inputs, attrs["start"], attrs["stop"], attrs["step"])]


@kernel("unfold_tensor")
def unfold_tensor(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """x -> windows of `size`, every `step`, along `dimension`."""
    return [_C.unfold_tensor(inputs[0], attrs["dimension"], attrs["size"], attrs["step"])]


@kernel("concat")
def concat(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in_0, ..., in_k) -> out along `axis`."""
    return [flow.cat(list(inputs), dim=attrs["axis"])]


@kernel("stack")
def stack(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in_0, ..., in_k) -> out with a new dim `axis`."""
    return [flow.stack(list(inputs), dim=attrs["axis"])]


@kernel("roll")
def roll(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out, moved by `shifts` along `dims`."""
    return [flow.roll(inputs[0], attrs["shifts"], attrs["dims"])]


@kernel("flip")
def flip(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> out, reversed along `dims`."""
    return [flow.flip(inputs[0], list(attrs["dims"]))]


@kernel("tril", "triu")
def triangle(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """in -> the triangle of the last two dims, zero elsewhere."""
    return [getattr(flow, ctx.spec.kind)(inputs[0], attrs["diagonal"])]


@kernel("constant")
def constant(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> out of `shape`, filled with one value."""
    key = "floating_value" if attrs["is_floating_value"] else "integer_value"
    dtype = getattr(flow, attrs["dtype"])
    return [flow.full(attrs["shape"], attrs[key], dtype=dtype, device=ctx.device)]


@kernel("arange")
def arange(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> start, start + delta, ... below limit."""
    dtype = getattr(flow, attrs["dtype"])
    prefix = "float" if dtype.is_floating_point else "integer"
    start, limit, delta = (attrs[f"{prefix}_{key}"] for key in ("start", "limit", "delta"))
    return [flow.arange(start, limit, delta, dtype=dtype, device=ctx.device)]


@kernel("eye")
def eye(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> [rows, cols] with ones on the diagonal."""
    return [
        flow.eye(attrs["rows"], attrs["cols"], device=ctx.device).to(getattr(flow, attrs["dtype"]))
    ]


@kernel("repeat_interleave")
def repeat_interleave(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(repeats, their running sum) -> number i as often as repeats[i] says."""
    repeats, ends = inputs
    places = flow.arange(attrs["repeat_num"], dtype=ends.dtype, device=ctx.device)
    return [flow.searchsorted(ends, places, right=True).to(repeats.dtype)]
