"""Placements of a tensor on a device mesh: Split(dim), Broadcast or Partial, one per mesh axis.

AutoDDL section 4.1. A tensor's state on an n-axis mesh is an `NdSbp`, n placements, written
`(S0, B, P)`; `NdSbp.parse` inverts `str`. When several axes split the same dim the split is
nested: the earlier axis is the major one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_BROADCAST_CODE = -1
_PARTIAL_CODE = -2


@dataclass(frozen=True, slots=True)
class Placement:
    """One label on one mesh axis. Build with `S(dim)`, or take the constants `B` and `P`.

    `code` is the dim for a split, -1 for Broadcast, -2 for Partial; arrays of placements hold
    codes.
    """

    code: int

    def __post_init__(self) -> None:
        if self.code < _PARTIAL_CODE:
            raise ValueError(f"a split dim must be 0 or more, got {self.code}")

    def __hash__(self) -> int:
        return self.code

    @property
    def is_split(self) -> bool:
        return self.code >= 0

    @property
    def is_broadcast(self) -> bool:
        return self.code == _BROADCAST_CODE

    @property
    def is_partial(self) -> bool:
        return self.code == _PARTIAL_CODE

    @property
    def dim(self) -> int:
        """The split tensor dim; only a split has one."""
        assert self.is_split, f"{self} splits no dim"
        return self.code

    def __str__(self) -> str:
        return f"S{self.code}" if self.is_split else "B" if self.is_broadcast else "P"

    __repr__ = __str__

    @staticmethod
    def parse(text: str) -> Placement:
        """The inverse of `str`: `S0`, `B` or `P`. Raises ValueError on anything else."""
        text = text.strip()
        if text == "B":
            return B
        if text == "P":
            return P
        if re.fullmatch(r"S\d+", text):
            return S(int(text[1:]))
        raise ValueError(f"{text!r} is not a placement; expected S<dim>, B or P")


@lru_cache(maxsize=256)
def S(dim: int) -> Placement:
    """Split along tensor dim `dim`. Instances are cached, so that comparing them is quick."""
    if dim < 0:
        raise ValueError(f"a split dim must be 0 or more, got {dim}")
    return Placement(dim)


B = Placement(_BROADCAST_CODE)
P = Placement(_PARTIAL_CODE)
_BY_CODE = {B.code: B, P.code: P}


@dataclass(frozen=True, slots=True)
class NdSbp:
    """One placement per mesh axis, `(S0, B, P)`."""

    placements: tuple[Placement, ...]
    _hash: int = field(init=False, repr=False, compare=False)  # placements are often asked for

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.placements))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NdSbp) and self.placements == other.placements)

    @staticmethod
    def of(*placements: Placement) -> NdSbp:
        return NdSbp(tuple(placements))

    @staticmethod
    def broadcast(num_axes: int) -> NdSbp:
        return NdSbp((B,) * num_axes)

    @staticmethod
    def parse(text: str) -> NdSbp:
        """The inverse of `str`. Raises ValueError naming the bad part."""
        stripped = text.strip()
        if not (stripped.startswith("(") and stripped.endswith(")")):
            raise ValueError(f"{text!r} is not an NdSbp; expected e.g. (S0, B, P)")
        inside = stripped[1:-1].strip()
        return NdSbp(tuple(Placement.parse(part) for part in inside.split(",")) if inside else ())

    @staticmethod
    def from_codes(codes: Iterable[int]) -> NdSbp:
        return NdSbp(tuple(_BY_CODE.get(int(code)) or S(int(code)) for code in codes))

    @property
    def codes(self) -> NDArray[np.int8]:
        """int8 array [num_axes] of `Placement.code`."""
        return np.array([p.code for p in self.placements], dtype=np.int8)

    @property
    def has_partial(self) -> bool:
        return any(p.is_partial for p in self.placements)

    def axes_of(self, placement: Placement) -> tuple[int, ...]:
        """The mesh axes that carry `placement`, major first."""
        return tuple(i for i, p in enumerate(self.placements) if p == placement)

    def split_dims(self) -> tuple[int, ...]:
        """The tensor dims that are split, ascending."""
        return tuple(sorted({p.dim for p in self.placements if p.is_split}))

    def replace(self, axes: Iterable[int], placement: Placement) -> NdSbp:
        chosen = set(axes)
        return NdSbp(tuple(placement if i in chosen else p for i, p in enumerate(self.placements)))

    def gradient(self) -> NdSbp:
        """The natural placement of the gradient: Partial becomes Broadcast, the rest stays."""
        return NdSbp(tuple(B if p.is_partial else p for p in self.placements))

    def __iter__(self) -> Iterator[Placement]:
        return iter(self.placements)

    def __len__(self) -> int:
        return len(self.placements)

    def __getitem__(self, axis: int) -> Placement:
        return self.placements[axis]

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.placements)) + ")"

    __repr__ = __str__
