"""How long a search may run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """restarts: descents from random starts; seconds: no new start after this many.

    beat_s: a solution that costs this much or more is of no use; a search that sees that it cannot
    do better may give up.

    Only `restarts` bounds a search whose result must be the same on every machine.
    """

    restarts: int = 32
    seconds: float = float("inf")
    beat_s: float = float("inf")

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise ValueError(f"a search needs at least one start, got restarts={self.restarts}")
