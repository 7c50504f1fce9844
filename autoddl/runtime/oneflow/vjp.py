"""One operator, forward and backward: its outputs, then its vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import oneflow as flow
from oneflow._oneflow_internal.autograd import grad
from oneflow.framework.tensor_tuple_util import convert_to_tensor_tuple

from .detach import detached
from .kernels.product import product_gradient
from .kernels.registry import ByInput, Context, Explicit, Kernel, Vjp


@dataclass
class Record:
    """What the backward pass needs: an explicit product, or autograd's leaves and roots.

    by_input: instead of `vjp`, gives the gradient of one input; `wanted` says which are
    """

    vjp: Vjp | None
    leaves: list[flow.Tensor | None] = field(default_factory=list)
    roots: list[flow.Tensor] = field(default_factory=list)
    by_input: ByInput | None = None
    wanted: Sequence[bool] = ()


def run_kernel(
    kernel: Kernel,
    context: Context,
    attrs: Mapping[str, Any],
    inputs: Sequence[flow.Tensor],
    wanted: Sequence[bool],
) -> tuple[Record | None, list[flow.Tensor]]:
    """The outputs, cut off from autograd, and the record if a gradient is `wanted` of any input."""
    context.updates.clear()
    if not any(wanted):
        with flow.no_grad():
            result = kernel(context, inputs, attrs)
        outputs = result.outputs if isinstance(result, Explicit | ByInput) else result
        return None, list(outputs)
    leaves = [
        detached(x).requires_grad_() if wants else None
        for x, wants in zip(inputs, wanted, strict=True)
    ]
    result = kernel(
        context,
        [x if leaf is None else leaf for x, leaf in zip(inputs, leaves, strict=True)],
        attrs,
    )
    if isinstance(result, Explicit):
        return Record(result.vjp), list(result.outputs)
    if isinstance(result, ByInput):
        return Record(None, by_input=result, wanted=wanted), list(result.outputs)
    return Record(None, leaves, list(result)), [detached(x) for x in result]


def run_forgetting(
    kernel: Kernel,
    context: Context,
    attrs: Mapping[str, Any],
    inputs: Sequence[flow.Tensor],
    fetch: Callable[[], flow.Tensor],
) -> tuple[Record, list[flow.Tensor]]:
    """A matrix product that does not keep its second input: the backward pass fetches it again."""
    with flow.no_grad():
        result = kernel(context, inputs, attrs)
    a = detached(inputs[0])
    emulated = result.vjp if isinstance(result, Explicit) else None
    outputs = result.outputs if isinstance(result, Explicit | ByInput) else result

    def vjp(gradients: Sequence[flow.Tensor | None]) -> Sequence[flow.Tensor | None]:
        b, (dy,) = fetch(), gradients
        if emulated is not None:
            return emulated(gradients)
        assert dy is not None
        return [product_gradient(a, b, attrs, dy, index) for index in (0, 1)]

    return Record(vjp), list(outputs)


def product(
    record: Record,
    gradients: Sequence[flow.Tensor | None],
    later: Container[int] = (),
) -> Sequence[flow.Tensor | None]:
    """The gradients of the inputs from those of the outputs (None: not used). Call once.

    later: inputs whose gradients are left out; only for a record that has `by_input`, which a
           later call gives them
    """
    if record.by_input is not None:
        return [
            record.by_input.gradient(gradients, n) if wants and n not in later else None
            for n, wants in enumerate(record.wanted)
        ]
    if record.vjp is not None:
        return record.vjp(gradients)
    roots = [(y, g) for y, g in zip(record.roots, gradients, strict=True) if g is not None]
    # autograd refuses leaves that no operator has read; such a one may itself be a root
    found: dict[int, flow.Tensor] = {}
    for y, g in roots:
        if y.is_leaf:
            found[id(y)] = found[id(y)] + g if id(y) in found else g
    roots = [(y, g) for y, g in roots if not y.is_leaf or y.grad_fn is not None]
    leaves = [leaf for leaf in record.leaves if leaf is not None and leaf.grad_fn is not None]
    if roots and leaves:
        tensors = [y for y, _ in roots], leaves, [g for _, g in roots]
        # as autograd has worked them out: `Tensor.grad` and `autograd.grad` are copies
        taken = grad(*map(convert_to_tensor_tuple, tensors), False, False)
        found |= {id(leaf): g for leaf, g in zip(leaves, taken, strict=True) if g is not None}
    # an input that no output depends on has got no gradient
    return [
        None if leaf is None else found[id(leaf)] if id(leaf) in found else flow.zeros_like(leaf)
        for leaf in record.leaves
    ]
