"""Paths to and from a tensor that is whole on every rank, for outputs and state: no plan chose.

They take each label's axes at once: first the sums, then the gathers.
"""

from __future__ import annotations

from ...sbp.placement import B, NdSbp, P, S
from ...sbp.steps import Step


def to_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Steps from `nd` to all Broadcast."""
    steps: list[Step] = []
    if nd.has_partial:
        steps.append(Step("all_reduce", nd.axes_of(P), P, B))
    for dim in nd.split_dims():
        steps.append(Step("all_gather", nd.axes_of(S(dim)), S(dim), B))
    return tuple(steps)


def from_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Local steps from all Broadcast to `nd`, which is not Partial."""
    assert not nd.has_partial
    return tuple(Step("slice", nd.axes_of(S(dim)), B, S(dim)) for dim in nd.split_dims())
