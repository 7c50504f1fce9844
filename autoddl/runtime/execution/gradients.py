"""Gradients of parameters: summed over micro-batches where they arise, then brought home.

The first two gradients of a use are added into a tensor of the sum's own, since an operator may
give one tensor as the gradient of several inputs; all others are added to that in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..backend import Tensor
from .program import Edge, Key, Program

SumKey = TypeVar("SumKey", bound=Hashable)


@dataclass
class Accumulated(Generic[SumKey]):
    """`own`: the keys whose sums nobody else holds."""

    sums: dict[SumKey, Tensor] = field(default_factory=dict)
    own: set[SumKey] = field(default_factory=set)

    def add(self, key: SumKey, gradient: Tensor) -> None:
        """Add a gradient, which stays as it is."""
        if key in self.own:
            self.sums[key] += gradient  # in place
        elif key in self.sums:
            self.sums[key] = self.sums[key] + gradient
            self.own.add(key)
        else:
            self.sums[key] = gradient

    def pop(self, key: SumKey) -> Tensor:
        """The sum, which is then forgotten."""
        self.own.discard(key)
        return self.sums.pop(key)


def keep(gradients: Accumulated[Key], edge: Edge, gradient: Tensor) -> None:
    """Add the gradient of one use of a parameter, from ZeRO's stage 2 on where it is stored."""
    gradients.add(edge.key, edge.backward(gradient) if edge.zero_stage > 1 else gradient)


def bring_home(
    program: Program, gradients: Accumulated[Key], give: Callable[[str, Tensor], None]
) -> None:
    """Bring the sums of all uses to their parameters, and `give` each parameter its gradient."""
    uses = [
        edge
        for node in program.nodes
        for edge in node.edges
        if edge.source.kind == "param" and edge.carries_gradient
    ]
    left = Counter(edge.source.attrs["name"] for edge in uses)
    sums: dict[str, Tensor] = {}
    for edge in uses:
        name, gradient = edge.source.attrs["name"], gradients.pop(edge.key)
        arrived = gradient if edge.zero_stage > 1 else edge.backward(gradient)
        sums[name] = sums[name] + arrived if name in sums else arrived
        del gradient, arrived
        left[name] -= 1
        if not left[name]:
            give(name, sums.pop(name))
