"""Loops that Numba compiles, once that pays.

Compiled loops are about ten times as fast as arrays, and take half a second to load (and a second
or two more, the first time on a machine, to be compiled): more than planning a small model takes in
all. So there are both, and they must give the same bits; compiled ones are loaded once the arrays
have taken as long as the loading would. What has been computed is counted, not timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

Loops = TypeVar("Loops", bound=Callable[..., object])
_LOADING_S = 0.4


@dataclass
class Compiler:
    """arrays_s: seconds that arrays have taken so far, about."""

    arrays_s: float = 0.0
    _known: dict[Callable[..., object], object] = field(default_factory=dict)

    def worth(self, loops: Loops, arrays_s: float) -> Loops | None:
        """`loops` compiled; None if it does not pay yet.

        arrays_s: seconds that the work at hand takes on arrays
        """
        self.arrays_s += arrays_s
        return self.compiled(loops) if self.arrays_s > _LOADING_S else None

    def expect_much(self) -> None:
        """So much is to be computed that the arrays need not show first that loading pays."""
        self.arrays_s = math.inf

    def compiled(self, loops: Loops) -> Loops:
        """For each combination of types when it is first called; they run beside other threads."""
        if loops not in self._known:
            import numba

            try:
                self._known[loops] = numba.njit(cache=True, nogil=True)(loops)
            except RuntimeError:  # there is nowhere to keep it for the next time
                self._known[loops] = numba.njit(nogil=True)(loops)
        return cast(Loops, self._known[loops])


COMPILER = Compiler()
