"""Cutting a tensor off from autograd.

`Tensor.detach` of OneFlow 0.9.0 forgets where in its storage a view begins: the result itself reads
right, but a view of it (a transpose, a slice) starts at the storage's beginning.
"""

from __future__ import annotations

import oneflow as flow


def detached(x: flow.Tensor) -> flow.Tensor:
    """`x` without its history; a copy if it is a view that begins inside its storage."""
    if x.storage_offset():
        with flow.no_grad():
            return x.clone()
    return x.detach()
