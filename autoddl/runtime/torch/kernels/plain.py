"""Kernels that are one function of torch: of the inputs, or of the inputs and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ....sbp.signature import Attrs
from ...kernel import Context, Kernel


def of_inputs(functions: Mapping[str, Callable[..., Tensor]]) -> dict[str, Kernel]:
    """Kernels of functions of the inputs alone."""

    def wrap(function: Callable[..., Tensor]) -> Kernel:
        return lambda ctx, inputs, attrs: [function(*inputs)]

    return {kind: wrap(function) for kind, function in functions.items()}


def of_attrs(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Kernel]:
    """Kernels of functions of the attributes, then the inputs."""

    def wrap(function: Callable[..., Any]) -> Kernel:
        def run(ctx: Context, inputs: Sequence[Tensor], attrs: Attrs) -> list[Tensor]:
            return [function(attrs, *inputs)]

        return run

    return {kind: wrap(function) for kind, function in functions.items()}
