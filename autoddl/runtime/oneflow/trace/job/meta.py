"""Storage-free construction: models of any size in the memory of a small one.

Inside `storage_free()` every large new tensor is one element viewed with zero strides, so that a
36-billion-parameter model can be built, traced and planned, but not run: its values are
meaningless. In-place initialisers skip such tensors, as each write would visit every element.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import oneflow as flow
import oneflow.nn as nn

LARGE = 4096  # elements; smaller tensors are cheap, so they are real
_FACTORIES = ("empty", "zeros", "ones", "rand", "randn", "full")
_KEPT_METHODS = ("requires_grad_", "_zero_grad_")


def is_storage_free(tensor: flow.Tensor) -> bool:
    """True if all elements of `tensor` share the same memory."""
    return tensor.numel() > 1 and all(
        stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    )


def shape_only(shape: tuple[int, ...], dtype: flow.dtype) -> flow.Tensor:
    """A tensor of `shape` that takes the memory of one element."""
    return flow._C.expand(flow._C.empty([1], dtype=dtype), list(shape)) if shape else _scalar(dtype)


@contextmanager
def storage_free() -> Iterator[None]:
    """A context in which modules are built without memory for their parameters."""
    real = flow.Tensor
    saved: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for name in _FACTORIES:
        patch(flow, name, _small_factory(name, getattr(flow, name)))
    for name in dir(nn.init):
        if name.endswith("_") and not name.startswith("_"):
            patch(nn.init, name, _skipping(getattr(nn.init, name)))
    for name in dir(real):
        in_place = name.endswith("_") and not name.endswith("__") and name not in _KEPT_METHODS
        if in_place or name == "__setitem__":
            patch(real, name, _skipping(getattr(real, name)))
    tensor_class = _tensor_class(real)
    for module in _importers(real):
        patch(module, "Tensor", tensor_class)
    try:
        yield
    finally:
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)


def _importers(real: Any) -> list[Any]:
    """The modules that hold `flow.Tensor` under that name, but for OneFlow's own machinery."""
    return [
        module
        for name, module in list(sys.modules.items())
        if getattr(module, "__dict__", {}).get("Tensor") is real
        and not name.startswith(("oneflow.framework", "oneflow._oneflow_internal", "oneflow._C"))
    ]


def _scalar(dtype: flow.dtype) -> flow.Tensor:
    return flow._C.empty([], dtype=dtype)


def _shape_of(args: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The shape in the leading arguments of a factory: `(2, 3)` or `((2, 3),)`."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    if args and all(isinstance(n, int) for n in args):
        return tuple(args)
    return None


def _small_factory(name: str, make: Callable[..., flow.Tensor]) -> Callable[..., flow.Tensor]:
    """`make` for large shapes: one element of it, expanded."""

    @functools.wraps(make)
    def build(*args: Any, **kwargs: Any) -> flow.Tensor:
        shape = _shape_of(args[:1] if name == "full" else args)
        if shape is None or math.prod(shape) <= LARGE:
            return make(*args, **kwargs)
        trainable = kwargs.pop("requires_grad", False)
        rest = args[1:] if name == "full" else ()
        small = make((1,), *rest, **kwargs) if name == "full" else make(1, **kwargs)
        return flow._C.expand(small, list(shape)).requires_grad_(trainable)

    return build


def _skipping(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` that leaves storage-free first arguments as they are."""

    @functools.wraps(function)
    def apply(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, flow.Tensor) and is_storage_free(tensor):
            return tensor
        return function(tensor, *args, **kwargs)

    return apply


def _tensor_class(real: Any) -> Any:
    """A stand-in for `flow.Tensor` whose large instances have no storage."""

    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

    class Tensor(metaclass=Meta):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            shape = _shape_of(args)
            if shape is None or math.prod(shape) <= LARGE:
                return real(*args, **kwargs)
            return shape_only(shape, flow.float32)

    return Tensor
