"""Raises an error where OneFlow would abort: a forward pass that names a GPU on a host without one.

Eager mode refuses the device; in lazy mode moving a tensor there is a C++ abort.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import oneflow as flow

_MOVES = ("cuda", "to", "type")
_FACTORIES = (
    "tensor", "as_tensor", "empty", "zeros", "ones", "full", "arange", "linspace", "eye", "rand",
    "randn", "randint", "randperm", "normal", "zeros_like", "ones_like", "full_like", "empty_like",
)  # fmt: skip


@contextmanager
def devices_checked() -> Iterator[None]:
    """A context in which asking for a GPU raises RuntimeError if there is none."""
    if flow.cuda.is_available():
        yield
        return
    named = [*((flow.Tensor, name) for name in _MOVES), *((flow, name) for name in _FACTORIES)]
    saved = [(owner, name, getattr(owner, name)) for owner, name in named if hasattr(owner, name)]
    for owner, name, function in saved:
        setattr(owner, name, _checked(name, function))
    try:
        yield
    finally:
        for owner, name, function in saved:
            setattr(owner, name, function)


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def apply(*args: Any, **kwargs: Any) -> Any:
        if name == "cuda" or any(map(_is_gpu, (*args, *kwargs.values()))):
            raise RuntimeError(
                f"{name} asks for a GPU and there is none here; a forward pass that puts new "
                "tensors where its input is (device=x.device) is traced, and runs, anywhere"
            )
        return function(*args, **kwargs)

    return apply


def _is_gpu(value: Any) -> bool:
    if isinstance(value, flow.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value.startswith("cuda") or ".cuda." in value)
