"""What is known when a model is traced; what follows the batch is `Varying`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ...tracing.varying import Varying, at_batches, once

Known = (Tensor, Varying)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def uniform(x: Tensor) -> float | int | None:
    """The one number that all elements are; None if there are several, or it is not finite."""
    if not x.numel() or x.is_complex():
        return None
    first = x[(0,) * x.ndim]
    return first.item() if first.isfinite() and bool((once(x, x) == first).all()) else None


def is_known(value: Any) -> bool:
    """Whether a value, or all of a sequence of them, is known, sizes of the batch apart."""
    if isinstance(value, (list, tuple)):
        return all(map(is_known, value))
    if isinstance(value, Tensor):
        return value.device.type != "meta"
    return value is None or isinstance(
        value,
        Varying | int | float | complex | str | torch.dtype | torch.device | torch.layout
        | torch.memory_format,
    )  # fmt: skip


def filled(shape: Sequence[int], value: Any, dtype: str, batch: int) -> Tensor | Varying:
    """A constant of one number, which takes no memory."""
    one = torch.full((), value, dtype=getattr(torch, dtype))
    return at_batches(lambda size: one.expand(size), (tuple(shape),), batch)


def computed(node: fx.Node, given: Mapping[str, Any], batch: int) -> Any:
    """The value of an operator of constants, on the CPU."""
    here = {"device": torch.device("cpu"), "pin_memory": False}
    arguments = {k: here[k] if k in here and v else v for k, v in given.items()}
    schema: Any = node.target
    names = [argument.name for argument in schema._schema.arguments]
    named = {a.name for a in schema._schema.arguments if a.kwarg_only}

    def run(*values: Any) -> Any:
        pairs = dict(zip(names, values, strict=True))
        positional = [v for k, v in pairs.items() if k not in named]
        with torch.no_grad():
            return schema(*positional, **{k: v for k, v in pairs.items() if k in named})

    return at_batches(run, [arguments[name] for name in names], batch)
