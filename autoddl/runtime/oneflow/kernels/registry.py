"""The table of kernels, which the files of this folder fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...kernel import Kernel, OutputKernel

KERNELS: dict[str, Kernel] = {}
OUTPUT_KERNELS: dict[tuple[str, int], OutputKernel] = {}


def kernel(*kinds: str) -> Callable[[Kernel], Kernel]:
    """Register the decorated function as the kernel of the operator `kinds`."""

    def register(function: Kernel) -> Kernel:
        for kind in kinds:
            if kind in KERNELS:
                raise ValueError(f"operator kind {kind!r} has a kernel already")
            KERNELS[kind] = function
        return function

    return register


def output_kernel(kind: str, output: int) -> Callable[[OutputKernel], OutputKernel]:
    """Register the decorated function as the kernel of one output of the operator `kind`."""

    def register(function: OutputKernel) -> OutputKernel:
        OUTPUT_KERNELS[kind, output] = function
        return function

    return register


def simple(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Register functions of the inputs alone, with one output and no attributes."""

    def wrap(function: Callable[..., Any]) -> Kernel:
        return lambda ctx, inputs, attrs: [function(*inputs)]

    for kind, function in functions.items():
        kernel(kind)(wrap(function))
