"""Example tensors that have a shape but no data, so that a large batch costs nothing."""

from __future__ import annotations

import oneflow as flow


def blank(*shape: int, dtype: flow.dtype = flow.float32) -> flow.Tensor:
    """Zeros of `shape` that share one element of memory."""
    return flow.zeros(1, dtype=dtype).expand(*shape)
