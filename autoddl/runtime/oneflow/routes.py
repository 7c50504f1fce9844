"""Paths to and from a tensor that is whole on every rank, for outputs and state: no plan chose.

They take each label's axes at once: first the sums, then the gathers.
"""

from __future__ import annotations

from ...sbp.collectives import Step
from ...sbp.placement import B, NdSbp, P, S


def to_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Steps from `nd` to all Broadcast."""
    steps: list[Step] = []
    if nd.has_partial:
        steps.append(Step.between(P, B, nd.axes_of(P)))
    for dim in nd.split_dims():
        steps.append(Step.between(S(dim), B, nd.axes_of(S(dim))))
    return tuple(steps)


def from_broadcast(nd: NdSbp) -> tuple[Step, ...]:
    """Local steps from all Broadcast to `nd`, which is not Partial."""
    assert not nd.has_partial
    return tuple(Step.between(B, S(dim), nd.axes_of(S(dim))) for dim in nd.split_dims())
