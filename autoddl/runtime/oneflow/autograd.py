"""OneFlow's autograd: tensors cut off from it, and the vector-Jacobian product of a kernel call.

`Tensor.detach` of OneFlow 0.9.0 forgets where in its storage a view begins: the result itself reads
right, but a view of it (a transpose, a slice) starts at the storage's beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

import oneflow as flow
from oneflow._oneflow_internal import TensorTuple
from oneflow._oneflow_internal.autograd import grad

from ..backend import Vjp


def detached(x: flow.Tensor) -> flow.Tensor:
    """`x` without its history, in the same memory."""
    if not x.storage_offset():
        return x.detach()
    with flow.no_grad():
        return x.narrow(0, 0, x.shape[0]) if x.ndim else x.clone()


def pull_back(leaves: Sequence[flow.Tensor | None], outputs: Sequence[flow.Tensor]) -> Vjp:
    """Gradients of `outputs` (None: not used) -> those of `leaves` (None: not wanted)."""

    def vjp(gradients: Sequence[flow.Tensor | None]) -> list[flow.Tensor | None]:
        roots = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None]
        # autograd refuses leaves that no operator has read; such a one may itself be a root
        found: dict[int, flow.Tensor] = {}
        for y, g in roots:
            if y.is_leaf:
                found[id(y)] = found[id(y)] + g if id(y) in found else g
        roots = [(y, g) for y, g in roots if not y.is_leaf or y.grad_fn is not None]
        read = [leaf for leaf in leaves if leaf is not None and leaf.grad_fn is not None]
        if roots and read:
            tensors = [y for y, _ in roots], read, [g for _, g in roots]
            # as autograd has worked them out: `Tensor.grad` and `autograd.grad` are copies
            taken = grad(*map(TensorTuple, tensors), False, False)
            for number, leaf in enumerate(read):  # to walk through a TensorTuple costs 22 us
                if (g := taken[number]) is not None:
                    found[id(leaf)] = g
        # an input that no output depends on has got no gradient
        return [
            None if x is None else found[id(x)] if id(x) in found else flow.zeros_like(x)
            for x in leaves
        ]

    return vjp
