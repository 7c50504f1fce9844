"""Operators that rearrange elements, and those that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Kernel
from .plain import of_attrs


def _slice(a: Attrs, x: Tensor) -> Tensor:
    ranges = zip(a["start"], a["stop"], a["step"], strict=True)
    return x[tuple(slice(*one) for one in ranges)]


def _slice_update(a: Attrs, ref: Tensor, value: Tensor) -> Tensor:
    result = ref.clone()
    ranges = zip(a["start"], a["stop"], a["step"], strict=True)
    result[tuple(slice(*one) for one in ranges)] = value
    return result


def concat(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in_0, ..., in_k) -> out along `axis`."""
    return [torch.cat(list(inputs), attrs["axis"])]


def stack(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """(in_0, ..., in_k) -> out with a new dim `axis`."""
    return [torch.stack(list(inputs), attrs["axis"])]


def constant(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> out of `shape`, filled with one value."""
    value = attrs["floating_value" if attrs["is_floating_value"] else "integer_value"]
    dtype = getattr(torch, attrs["dtype"])
    return [torch.full(tuple(attrs["shape"]), value, dtype=dtype, device=ctx.device)]


def arange(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> start, start + delta, ... below limit."""
    dtype = getattr(torch, attrs["dtype"])
    prefix = "float" if dtype.is_floating_point else "integer"
    start, limit, delta = (attrs[f"{prefix}_{key}"] for key in ("start", "limit", "delta"))
    return [torch.arange(start, limit, delta, dtype=dtype, device=ctx.device)]


def eye(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
    """-> [rows, cols] with ones on the diagonal."""
    size, dtype = (attrs["rows"], attrs["cols"]), getattr(torch, attrs["dtype"])
    return [torch.eye(*size, dtype=dtype, device=ctx.device)]


KERNELS: dict[str, Kernel] = {
    **of_attrs(
        {
            "reshape": lambda a, x: x.reshape(a["shape"]),
            "squeeze": lambda a, x: x.squeeze(tuple(a["axes"])),
            "expand_dims": lambda a, x: x.unsqueeze(a["axis"]),
            "transpose": lambda a, x: x.permute(a["perm"]),
            "expand": lambda a, x: x.expand(a["expand_shape"]),
            "narrow": lambda a, x: x.narrow(a["dim"], a["start"], a["length"]),
            "slice": _slice,
            "slice_update": _slice_update,
            "unfold_tensor": lambda a, x: x.unfold(a["dimension"], a["size"], a["step"]),
            "roll": lambda a, x: torch.roll(x, tuple(a["shifts"]), tuple(a["dims"])),
            "flip": lambda a, x: torch.flip(x, tuple(a["dims"])),
            "tril": lambda a, x: torch.tril(x, a["diagonal"]),
            "triu": lambda a, x: torch.triu(x, a["diagonal"]),
        }
    ),
    "concat": concat,
    "stack": stack,
    "constant": constant,
    "arange": arange,
    "eye": eye,
}
