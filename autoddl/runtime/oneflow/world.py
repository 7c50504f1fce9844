"""What all ranks of a job do together, whatever meshes they belong to."""

from __future__ import annotations

import oneflow as flow


def broadcast(value: flow.Tensor, source: int) -> flow.Tensor:
    """Rank `source`'s value, on every rank; `value` is overwritten."""
    if flow.env.get_world_size() > 1:
        flow.comm.broadcast(value, source)
    return value
