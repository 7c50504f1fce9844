"""Sums of gradients over micro-batches, added up in place.

The first two gradients of a key are added into a tensor of the sum's own, since an operator may
give one tensor as the gradient of several inputs; all others are added to that in place.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import oneflow as flow

Key = TypeVar("Key", bound=Hashable)


@dataclass
class Accumulated(Generic[Key]):
    """`own`: the keys whose sums nobody else holds."""

    sums: dict[Key, flow.Tensor] = field(default_factory=dict)
    own: set[Key] = field(default_factory=set)

    def add(self, key: Key, gradient: flow.Tensor) -> None:
        """Add a gradient, which stays as it is."""
        if key in self.own:
            self.sums[key].add_(gradient)
        elif key in self.sums:
            self.sums[key] = self.sums[key] + gradient
            self.own.add(key)
        else:
            self.sums[key] = gradient

    def pop(self, key: Key) -> flow.Tensor:
        """The sum, which is then forgotten."""
        self.own.discard(key)
        return self.sums.pop(key)
