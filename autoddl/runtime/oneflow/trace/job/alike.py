"""Which calls of layers are alike, as far as that can be told before they run.

Two calls are alike if the layers are built alike (types, shapes, modes, ties), hold equal
attributes, get equal arguments (tensors of equal shape and dtype, in equal roles), have no hooks of
the user's, and find the same in the globals of their code. What cannot be compared makes a call
unlike any other.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Hashable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import oneflow as flow
import oneflow._oneflow_internal as internal
import oneflow.nn as nn

from .....graph.hints import is_noting
from ....nested import Slot, take_tensors
from ....tracing.as_planned import TRAINED_BY

_PLAIN = (type(None), bool, int, str, bytes, complex, flow.dtype, type(...))
_BY_IDENTITY = (FunctionType, BuiltinFunctionType, ModuleType, type, flow.Tensor, nn.Module)
# Of a module, what is compared by itself or says nothing of its forward pass.
_APART = frozenset(
    {
        "_parameters", "_buffers", "_modules", "_forward_hooks", "_backward_hooks",
        "_forward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks",
        "_non_persistent_buffers_set", "_is_full_backward_hook", "_is_ddp_module",
        "_oneflow_internal_module_tensor_applied_dict__", TRAINED_BY,
    }
)  # fmt: skip
_HOOKS = ("_forward_hooks", "_backward_hooks")
LEAST = 4  # layers, of which three run: to compare fewer takes as long as to run them
_MOST = 2000  # values in one object
_MOST_GLOBAL = 100  # and in a global one: of larger ones the length is compared


class Unlike(Exception):
    """Something that cannot be compared."""


def built_alike(model: nn.Module) -> Iterator[list[str]]:
    """Paths of modules with others in them, of which `LEAST` or more have equal parts."""
    numbers: dict[Hashable, int] = {}
    alike: dict[int, list[str]] = {}

    def visit(path: str, module: nn.Module) -> int:
        parts = [
            (name, None if child is None else visit(f"{path}.{name}" if path else name, child))
            for name, child in module._modules.items()
        ]
        key = type(module), module.training, tuple(parts), *_own_specs(module, {})
        number = numbers.setdefault(key, len(numbers))
        if parts:
            alike.setdefault(number, []).append(path)
        return number

    visit("", model)
    return (paths for paths in alike.values() if len(paths) >= LEAST)


def _own_specs(module: nn.Module, seen: dict[int, int]) -> Iterator[Hashable]:
    """Of its own parameters and buffers; `seen` numbers tensors, so that ties are told."""
    for slots in (module._parameters, module._buffers):
        for name, x in slots.items():
            if x is None:
                yield name
            else:
                tie = seen.setdefault(id(x), len(seen))
                yield name, tuple(x.shape), x.dtype, x.requires_grad, tie


def state_of(module: nn.Module) -> list[tuple[str, flow.Tensor]]:
    """(name, tensor) of all parameters and buffers, tied ones too, in order."""
    return [
        (name, x)
        for part in module.modules()
        for slots in (part._parameters, part._buffers)
        for name, x in slots.items()
        if x is not None
    ]


class Comparison:
    """Makes keys of calls; equal ones are alike. It keeps all that it has compared by identity."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._left = _MOST  # values that the object at hand may still have

    def key(self, module: nn.Module, args: Any, kwargs: Any) -> Hashable:
        """Of a call; it changes if the call changes what it reads. Unlike if there is none."""
        structure, tensors = take_tensors((args, kwargs), flow.Tensor)
        own = {id(x): n for n, (_, x) in reversed([*enumerate(state_of(module))])}
        roles: dict[int, int] = {}
        given = []
        if not all(x.is_lazy for x in (*tensors, *(x for _, x in state_of(module)))):
            raise Unlike
        for x in tensors:
            role = own.get(id(x)), roles.setdefault(id(x), len(roles))
            given.append((tuple(x.shape), x.dtype, x.requires_grad, role))
        return (
            *given, self.said(structure), *self._module(module), *self._code(module),
            flow.is_grad_enabled(),
        )  # fmt: skip

    def _module(self, module: nn.Module) -> Iterator[Hashable]:
        seen: dict[int, int] = {}
        for name, part in module.named_modules():
            held = part.__dict__
            if any(held[hooks] for hooks in _HOOKS):
                raise Unlike
            if not all(map(is_noting, held["_forward_pre_hooks"].values())):
                raise Unlike
            yield name, type(part), *_own_specs(part, seen)
            for key, value in held.items():
                if key not in _APART:
                    yield key, self.said(value)

    def _code(self, module: nn.Module) -> Iterator[Hashable]:
        """What may change of the classes and the files that the layer's code is in."""
        classes = {type(part): None for part in module.modules()}
        owners = {id(held): held for cls in classes for held in _held_by(cls)}
        for number, held in owners.items():
            for key, value in held.items():
                if isinstance(value, (bool, int, float)):
                    yield number, key, value
                elif isinstance(value, (list, dict, set)) and not key.startswith("__"):
                    yield number, key, self._content(value)

    def _content(self, value: Any) -> Hashable:
        self._left = _MOST_GLOBAL
        try:
            return self._said(value)
        except Unlike:
            return self._identity(value), len(value)

    def said(self, x: Any) -> Hashable:
        """A value in the form in which it is compared."""
        self._left = _MOST
        return self._said(x)

    def _said(self, x: Any) -> Hashable:
        self._left -= 1
        if self._left < 0:
            raise Unlike  # too much, or something that holds itself
        if isinstance(x, _PLAIN):
            return x.__class__, x
        if isinstance(x, float):
            return float, x.hex()
        if isinstance(x, flow.device):
            return flow.device, str(x)
        if isinstance(x, Slot):
            return Slot, x.index
        if isinstance(x, slice):
            return slice, *map(self._said, (x.start, x.stop, x.step))
        if isinstance(x, (list, tuple)):
            return type(x), *map(self._said, x)
        if isinstance(x, Mapping):
            return type(x), *((self._said(key), self._said(value)) for key, value in x.items())
        if isinstance(x, (set, frozenset)):
            return type(x), frozenset(map(self._said, x))
        if isinstance(x, functools.partial):
            return functools.partial, *map(self._said, (x.func, x.args, x.keywords))
        if isinstance(x, internal.Generator):
            return internal.Generator  # of seeds only, which the graph does not have
        if isinstance(x, _BY_IDENTITY):
            return self._identity(x)
        if not hasattr(x, "__dict__") or isinstance(x, random.Random):
            raise Unlike  # its state is out of sight
        return self._identity(x), self._said(vars(x))

    def _identity(self, x: Any) -> int:
        self._kept[id(x)] = x  # another object is to have another number
        return id(x)


def _held_by(cls: type) -> Iterator[Mapping[str, Any]]:
    """The attributes of a class and of its bases that are not OneFlow's, and their globals."""
    for base in cls.__mro__:
        if base is not object and base.__module__.partition(".")[0] != "oneflow":
            if base.__module__ not in sys.modules:
                raise Unlike
            yield vars(base)
            yield vars(sys.modules[base.__module__])
