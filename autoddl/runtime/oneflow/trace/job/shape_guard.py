"""Raises an error where OneFlow would abort: invalid operand shapes in lazy mode.

Eager operators check their operands, but some lazy ones fail while OneFlow infers placements, and
that failure is a C++ abort: broadcasting operators, products with several batch dims, convolutions.
All Python functions that call those operators are wrapped while a model is traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import oneflow as flow

Shapes = Sequence[tuple[int, ...]]

_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "mod",
    "rmod", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "rand", "ror", "rxor",
)  # fmt: skip
_BROADCASTING = (
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "pow", "fmod",
    "maximum", "minimum", "max", "min", "eq", "ne", "not_equal", "lt", "le", "gt", "ge", "greater",
    "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "addcmul", "addcmul_", "addcdiv", "addcdiv_",
    "logaddexp", "isclose", "allclose", "mse_loss", "l1_loss", "pairwise_distance",
    "margin_ranking_loss", "triplet_margin_loss",
    "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_div", "broadcast_pow",
    "broadcast_fmod", "broadcast_equal", "broadcast_not_equal", "broadcast_less",
    "broadcast_less_equal", "broadcast_greater", "broadcast_greater_equal",
    "broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor",
)  # fmt: skip


def broadcast(shapes: Shapes) -> bool:
    """True if `shapes` broadcast against each other."""
    if shapes.count(shapes[0]) == len(shapes):
        return True
    for dim in range(1, max(map(len, shapes)) + 1):
        sizes = {shape[-dim] for shape in shapes if dim <= len(shape)} - {1}
        if len(sizes) > 1:
            return False
    return True


def _multiply(shapes: Shapes) -> bool:
    """True if the batch dims of matrices broadcast; OneFlow itself checks the other dims."""
    return broadcast([shape[:-2] for shape in shapes])


def _add_to_product(shapes: Shapes) -> bool:
    """Of (added [b, n, p], first [b, n, m], second [b, m, p])."""
    if len(shapes) < 3 or min(map(len, shapes)) < 2:
        return True
    added, first, second = shapes[:3]
    return broadcast([added, (*first[:-1], second[-1])])


def _convolve(windows: int, shapes: Shapes) -> bool:
    """Of (x [n, c, ...], weight [f, c, ...], ...), each with so many dims of a window."""
    return all(len(shape) == windows + 2 for shape in shapes[:2])


Fits = Callable[[Shapes], bool]
_OTHERS: dict[str, tuple[Fits, str]] = {
    **dict.fromkeys(("matmul", "__matmul__"), (_multiply, "have batch dims that do not broadcast")),
    "baddbmm": (_add_to_product, "do not fit"),
    **{
        f"{name}{windows}d": (
            functools.partial(_convolve, windows),
            f"have not {windows + 2} dims each (batch, channels, {windows} of the window)",
        )
        for name in ("conv", "deconv")
        for windows in (1, 2, 3)
    },
}
_CHECKS: dict[str, tuple[Fits, str]] = {
    **dict.fromkeys(_BROADCASTING, (broadcast, "do not broadcast")),
    **{f"__{name}__": (broadcast, "do not broadcast") for name in _OPERATORS},
    **_OTHERS,
}


@contextmanager
def shapes_checked() -> Iterator[None]:
    """A context in which operators raise RuntimeError for operand shapes that they reject."""
    owners = (flow, flow._C, flow.Tensor, flow.nn.functional)
    saved = [
        (owner, name, getattr(owner, name))
        for owner in owners
        for name in _CHECKS
        if hasattr(owner, name) and (owner is flow.Tensor or not name.startswith("__"))
    ]
    for owner, name, function in saved:
        setattr(owner, name, _checked(function, *_CHECKS[name]))
    try:
        yield
    finally:
        for owner, name, function in saved:
            setattr(owner, name, function)


def _checked(function: Callable[..., Any], fits: Fits, trouble: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        shapes = [a.shape for a in (*args, *kwargs.values()) if isinstance(a, flow.Tensor)]
        if len(shapes) > 1 and not fits(shapes):
            listed = " and ".join(str(tuple(shape)) for shape in shapes)
            raise RuntimeError(f"shapes {listed} {trouble} in {function.__name__}")
        return function(*args, **kwargs)

    return apply
