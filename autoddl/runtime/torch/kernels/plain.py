"""Kernels that are one function of torch: of the inputs, or of the attributes and inputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...kernel import Kernel


def of_inputs(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Kernel]:
    """Kernels of functions of the inputs alone."""
    return {kind: partial(_run, function) for kind, function in functions.items()}


def of_attrs(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Kernel]:
    """Kernels of functions of the attributes, then the inputs."""
    return {kind: partial(_run_by_attrs, function) for kind, function in functions.items()}


def _run(function: Callable[..., Any], ctx: Any, inputs: Any, attrs: Any) -> list[Any]:
    return [function(*inputs)]


def _run_by_attrs(function: Callable[..., Any], ctx: Any, inputs: Any, attrs: Any) -> list[Any]:
    return [function(attrs, *inputs)]
