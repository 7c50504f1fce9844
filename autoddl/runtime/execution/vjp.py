"""One operator, forward and backward: its outputs, then its vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import Backend, Tensor, Vjp
from ..kernel import ByInput, Context, Explicit, GradientOf, Kernel


@dataclass
class Record:
    """What the backward pass needs: a product of all gradients, or the gradient of each input.

    It holds no output that no gradient needs: memory is planned so (`cost.memory_rules`).

    by_input: instead of `vjp`, gives the gradient of one input; `wanted` says which are
    """

    vjp: Vjp | None
    by_input: GradientOf | None = None
    wanted: Sequence[bool] = ()


def run_kernel(
    backend: Backend,
    kernel: Kernel,
    context: Context,
    attrs: Mapping[str, Any],
    inputs: Sequence[Tensor],
    wanted: Sequence[bool],
) -> tuple[Record | None, list[Tensor]]:
    """The outputs, without history, and the record if a gradient is `wanted` of any input."""
    if context.updates:
        context.updates.clear()
    if True not in wanted:
        with backend.no_grad():
            result = kernel(context, inputs, attrs)
        outputs = result.outputs if isinstance(result, Explicit | ByInput) else result
        return None, list(outputs)
    watched = [
        backend.detached(x, watched=True) if wants else None
        for x, wants in zip(inputs, wanted, strict=True)
    ]
    result = kernel(
        context,
        [x if leaf is None else leaf for x, leaf in zip(inputs, watched, strict=True)],
        attrs,
    )
    if isinstance(result, Explicit):
        return Record(result.vjp), list(result.outputs)
    if isinstance(result, ByInput):
        return Record(None, by_input=result.gradient, wanted=wanted), list(result.outputs)
    return Record(backend.pull_back(watched, result)), [backend.detached(x) for x in result]


def run_forgetting(
    backend: Backend,
    kernel: Kernel,
    context: Context,
    attrs: Mapping[str, Any],
    inputs: Sequence[Tensor],
    fetch: Callable[[], Tensor],
) -> tuple[Record, list[Tensor]]:
    """A matrix product that does not keep its second input: the backward pass fetches it again."""
    with backend.no_grad():
        result = kernel(context, inputs, attrs)
    a = backend.detached(inputs[0])
    emulated = result.vjp if isinstance(result, Explicit) else None
    outputs = result.outputs if isinstance(result, Explicit | ByInput) else result

    def vjp(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        b, (dy,) = fetch(), gradients
        if emulated is not None:
            return emulated(gradients)
        assert dy is not None
        return [backend.kernels.product_gradient(a, b, attrs, dy, index) for index in (0, 1)]

    return Record(vjp), list(outputs)


def product(
    record: Record,
    gradients: Sequence[Tensor | None],
    later: Container[int] = (),
) -> Sequence[Tensor | None]:
    """The gradients of the inputs from those of the outputs (None: not used). Call once.

    later: inputs whose gradients are left out; only for a record that has `by_input`, which a
           later call gives them
    """
    if record.by_input is not None:
        return [
            record.by_input(gradients, n) if wants and n not in later else None
            for n, wants in enumerate(record.wanted)
        ]
    assert record.vjp is not None
    return record.vjp(gradients)
