"""Opaque operators: a submodule's own forward pass as a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import oneflow as flow

from ...kernel import OpaqueFn
from .opaque import OpaqueCall


def as_kernel(call: OpaqueCall) -> OpaqueFn:
    """Run `call` in training or evaluation mode; what is random in it comes from the seed."""

    def run(tensors: Sequence[flow.Tensor], training: bool, seed: int) -> list[flow.Tensor]:
        with _mode(call.function, training), _seeded(seed if training else None):
            return call.call(tensors)

    return run


@contextmanager
def _mode(function: Any, training: bool) -> Iterator[None]:
    """A module in evaluation mode unless `training`; then as the user has left it."""
    modules = list(function.modules()) if isinstance(function, flow.nn.Module) else []
    flags = [module.training for module in modules]
    try:
        for module in modules:
            module.training = module.training and training
        yield
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """OneFlow's random numbers from `seed`; the program's own sequence goes on afterwards."""
    if seed is None:
        yield
        return
    generator = flow.default_generator
    before = generator.get_state()
    try:
        generator.manual_seed(seed)
        yield
    finally:
        generator.set_state(before)
