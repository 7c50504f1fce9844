"""How long a search may run."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """restarts: descents, chains or draws from random starts, for searches that have such.

    evaluations: choices (or line searches, or branches) that are priced at most
    seconds:     no further evaluation after this many
    beat_s:      a solution that costs this much or more is of no use; a search that sees that it
                 cannot do better may give up

    A search whose budget ends returns the best choice so far. `seconds` makes the result depend on
    the machine; without it equal seeds give equal results.
    """

    restarts: int = 32
    evaluations: float = math.inf
    seconds: float = math.inf
    beat_s: float = math.inf

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise ValueError(f"a search needs at least one start, got restarts={self.restarts}")
        if not self.evaluations >= 1:
            raise ValueError(f"a search needs at least one evaluation, got {self.evaluations}")
        if not self.seconds > 0:
            raise ValueError(f"a search needs more than {self.seconds} seconds")

    @property
    def is_finite(self) -> bool:
        """Whether evaluations or seconds are limited."""
        return math.isfinite(self.evaluations) or math.isfinite(self.seconds)
