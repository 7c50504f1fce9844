"""Raise where OneFlow would end the process: shapes that do not broadcast, in lazy mode.

Eager operators check their operands, but a lazy broadcast operator of unfit shapes fails while
OneFlow infers placements, and that failure is a C++ abort. All ways from Python to those operators
are wrapped while a model is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import oneflow as flow

_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "mod",
    "rmod", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "rand", "ror", "rxor",
)  # fmt: skip
_FUNCTIONS = (
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "pow", "fmod",
    "maximum", "minimum", "max", "min", "eq", "ne", "not_equal", "lt", "le", "gt", "ge", "greater",
    "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "addcmul", "addcdiv", "mse_loss", "l1_loss",
    "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_pow",
    "broadcast_fmod", "broadcast_equal", "broadcast_not_equal", "broadcast_less",
    "broadcast_less_equal", "broadcast_greater", "broadcast_greater_equal",
    "broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor",
)  # fmt: skip


@contextmanager
def broadcasts_checked() -> Iterator[None]:
    """Binary operators on tensors whose shapes do not broadcast raise RuntimeError inside."""
    names = [(owner, name) for owner in _owners() for name in _FUNCTIONS]
    names += [(flow.Tensor, f"__{name}__") for name in _OPERATORS]
    saved = [(owner, name, getattr(owner, name)) for owner, name in names if hasattr(owner, name)]
    for owner, name, function in saved:
        setattr(owner, name, _checked(function))
    try:
        yield
    finally:
        for owner, name, function in saved:
            setattr(owner, name, function)


def _owners() -> tuple[Any, ...]:
    return (flow, flow._C, flow.Tensor, flow.nn.functional)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        shapes = [tuple(a.shape) for a in (*args, *kwargs.values()) if isinstance(a, flow.Tensor)]
        if len(shapes) > 1 and not broadcast(shapes):
            listed = " and ".join(map(str, shapes))
            raise RuntimeError(f"shapes {listed} do not broadcast in {function.__name__}")
        return function(*args, **kwargs)

    return apply


def broadcast(shapes: Sequence[tuple[int, ...]]) -> bool:
    """True if `shapes` broadcast against each other."""
    for dim in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-dim] for shape in shapes if dim <= len(shape)} - {1}
        if len(sizes) > 1:
            return False
    return True
