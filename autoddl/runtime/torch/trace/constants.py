"""What is known when a model is traced, and how it follows the batch.

A constant tensor whose sizes follow the batch, such as a mask of all rows, is computed at two
batches, `Varying`; a graph has it if it is the same in each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ....graph.builder import Follows, Size

_BATCHES = 2, 3


@dataclass(frozen=True)
class Varying:
    """A constant whose sizes follow the batch, by its values at batches of 2 and of 3."""

    values: tuple[Tensor, Tensor]

    def is_complex(self) -> bool:
        return self.values[0].is_complex()

    real = property(lambda self: Varying(tuple(v.real for v in self.values)))
    imag = property(lambda self: Varying(tuple(v.imag for v in self.values)))

    def stretched(self, batch: int) -> tuple[Tensor, list[int], list[int]]:
        """(a part, what it is to be stretched to, and then reshaped to) for this batch.

        `Follows` if it is not the same in each row of the batch.
        """
        base, wide, shape, rows = [], [], [], []
        for n, m in zip(*(v.shape for v in self.values), strict=True):
            each = m - n
            if each and n != 2 * each:
                raise Follows("a size that is no multiple of the batch's")
            if each:
                rows.append(len(base))
            base += [2, each] if each else [n]
            wide += [Size(batch, 1), each] if each else [n]
            shape.append(Size(each * batch, 1) if each else n)
        part = self.values[0].reshape(base)
        for d in rows:
            part = part.narrow(d, 0, 1)
        for b, value in zip(_BATCHES, self.values, strict=True):
            at = [b if d in rows else n for d, n in enumerate(part.shape)]
            if not torch.equal(part.expand(at).reshape(value.shape), value):
                raise Follows("a constant that differs from row to row of the batch")
        return part, wide, shape

    def shape(self, batch: int) -> list[int]:
        """At this batch."""
        pairs = zip(*(v.shape for v in self.values), strict=True)
        return [n if n == m else Size((m - n) * batch, 1) for n, m in pairs]

    def step(self, batch: int) -> Size | None:
        """Of one dim 0, step, 2 step, ...: where that ends at this batch; else None."""
        two, three = (v.flatten() for v in self.values)
        each = len(three) - len(two)
        if max(map(len, (v.squeeze().shape for v in self.values))) != 1 or len(two) != 2 * each:
            return None
        if two.is_floating_point() or two.dtype == torch.bool or int(three[0]):
            return None
        step = int(three[1])
        steps = torch.arange(len(three), dtype=three.dtype) * step
        alike = step > 0 and torch.equal(three, steps) and torch.equal(two, steps[: len(two)])
        return Size(step * each * batch, 1) if alike else None


Known = (Tensor, Varying)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def uniform(x: Tensor) -> float | int | None:
    """The one number that all elements are; None if there are several, or it is not finite."""
    if not x.numel() or x.is_complex():
        return None
    first = x.flatten()[0] if x.is_contiguous() else x[(0,) * x.ndim]
    return first.item() if bool((x == first).all()) and bool(torch.isfinite(first)) else None


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
    return _by_batch(lambda size: one.expand(size), (tuple(shape),), batch)


def computed(node: fx.Node, given: Mapping[str, Any], batch: int) -> Any:
    """The value of an operator of constants, on the CPU."""
    arguments = dict(given)
    if arguments.get("device") is not None:
        arguments["device"] = torch.device("cpu")
    if arguments.get("pin_memory"):
        arguments["pin_memory"] = False
    schema: Any = node.target
    names = [argument.name for argument in schema._schema.arguments]
    named = {a.name for a in schema._schema.arguments if a.kwarg_only}

    def run(*values: Any) -> Any:
        pairs = dict(zip(names, values, strict=True))
        positional = [v for k, v in pairs.items() if k not in named]
        with torch.no_grad():
            return schema(*positional, **{k: v for k, v in pairs.items() if k in named})

    return _by_batch(run, [arguments[name] for name in names], batch)


def _by_batch(run: Callable[..., Any], values: Sequence[Any], batch: int) -> Any:
    """What `run` gives: once, or at both batches if a value follows the batch."""
    if not _varies(values):
        return run(*values)
    return _together([run(*_at(values, i, batch)) for i in range(2)])


def _varies(values: Iterable[Any]) -> bool:
    return any(
        _varies(v)
        if isinstance(v, (list, tuple))
        else isinstance(v, Varying) or getattr(v, "exponent", 0) != 0
        for v in values
    )


def _at(value: Any, index: int, batch: int) -> Any:
    """A value at one of the two batches."""
    if isinstance(value, (list, tuple)):
        return [_at(v, index, batch) for v in value]
    if isinstance(value, Varying):
        return value.values[index]
    power = getattr(value, "exponent", 0)
    found = value * (_BATCHES[index] / batch) ** power if power else value
    return round(found) if power and isinstance(value, int) else found


def _together(values: Sequence[Any]) -> Any:
    first, second = values
    if isinstance(first, (list, tuple)):
        return [_together(pair) for pair in zip(first, second, strict=True)]
    if isinstance(first, Tensor):
        same = first.shape == second.shape and torch.equal(first, second)
        return first if same else Varying((first, second))
    if first != second:
        raise Follows("a number that follows the batch")
    return first
