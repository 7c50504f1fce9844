"""Tokens to experts and back: functions for models, each of which is traced as one operator.

Tokens that a gate sends to experts, at most `capacity` of each sequence to one, are copied to
places [experts, batch, capacity, width], and back. Forward and backward both look places up by
number; GShard's products with one-hot tensors [batch, length, experts, capacity] are not made.

    expert, position  [batch, length, k]: of each of a token's k choices the expert, and its place
                      from 0 among the sequence's tokens that go there; a token whose position is
                      `capacity` or more goes nowhere
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import oneflow as flow
from oneflow import _C, Tensor

from .trace.job.one_operator import OneOperator


def moe_dispatch(
    x: Tensor, expert: Tensor, position: Tensor, *, experts: int, capacity: int
) -> Tensor:
    """Tokens x [batch, length, width] -> [experts, batch, capacity, width], zero where none is."""
    return _Dispatch(experts, capacity)(x, expert, position)


def moe_combine(y: Tensor, expert: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """Places y [experts, batch, capacity, width] -> tokens [batch, length, width].

    A token is the sum of what its choices give, times `weight` [batch, length, k].
    """
    return _Combine()(y, expert, position, weight)


@dataclass(frozen=True)
class Places:
    """Who is where, among `experts` experts from number `first` on.

    place:  [k, batch * length]: the number of each choice's place; `count` if it has none there
    choice: [experts, batch, capacity]: the number of the choice (token * k + which) that takes
            the place; `batch * length * k` if none does

    A number past the end finds zeros (`gather`), so that neither needs a mask.
    """

    place: Tensor
    choice: Tensor
    count: int
    k: int

    @staticmethod
    def of(expert: Tensor, position: Tensor, experts: int, capacity: int, first: int = 0) -> Places:
        batch, length, k = expert.shape
        device, dtype = expert.device, expert.dtype
        count, total = experts * batch * capacity, batch * length * k
        row = flow.arange(batch, dtype=dtype, device=device).reshape(batch, 1, 1)
        local = expert - first
        inside = ((local >= 0) * (local < experts) * (position < capacity)).to(dtype)
        place = ((local * batch + row) * capacity + position - count) * inside + count
        number = flow.arange(total, dtype=dtype, device=device)
        free = flow.full((count + 1,), total, dtype=dtype, device=device)
        choice = _C.scatter(free, 0, place.reshape(total), number)[:count]
        return Places(
            place.reshape(batch * length, k).transpose(0, 1),
            choice.reshape(experts, batch, capacity),
            count,
            k,
        )

    def from_tokens(self, x: Tensor) -> Tensor:
        """x [batch, length, width] -> [experts, batch, capacity, width]."""
        token = self.choice if self.k == 1 else flow.floor_divide(self.choice, self.k)
        return _C.gather(x.reshape(-1, x.shape[-1]), token, 0)

    def to_choice(self, y: Tensor, which: int) -> Tensor:
        """y [experts, batch, capacity, width] -> what choice `which` finds, [tokens, width]."""
        return _C.gather(y.reshape(self.count, y.shape[-1]), self.place[which], 0)


class _Dispatch(OneOperator):
    kind = "moe_dispatch"

    def __init__(self, experts: int, capacity: int) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity

    def attrs(self) -> Mapping[str, Any]:
        return {"experts": self.experts, "capacity": self.capacity}

    def forward(self, x: Tensor, expert: Tensor, position: Tensor) -> Tensor:
        return Places.of(expert, position, self.experts, self.capacity).from_tokens(x)


class _Combine(OneOperator):
    kind = "moe_combine"

    def forward(self, y: Tensor, expert: Tensor, position: Tensor, weight: Tensor) -> Tensor:
        places = Places.of(expert, position, y.shape[0], y.shape[2])
        share = weight.reshape(-1, places.k)
        total = places.to_choice(y, 0) * share[:, 0:1]
        for which in range(1, places.k):
            total = total + places.to_choice(y, which) * share[:, which : which + 1]
        return total.reshape(*weight.shape[:-1], y.shape[-1])
