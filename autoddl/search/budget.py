"""How long a search may run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol


class Spent(Protocol):
    """A search or a part of one."""

    @property
    def evaluations(self) -> int: ...

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Budget:
    """restarts: descents, chains or draws from random starts, for searches that have such.

    evaluations: choices (or line searches, or branches) that are priced at most
    seconds:     no further evaluation after this many
    clock:       what the seconds are of; `time.process_time` counts only the processor's
    beat_s:      a solution that costs this much or more is of no use; a search that sees that it
                 cannot do better may give up
    gap:         relative gap at which a search may end
    enough_s:    a solution that costs so little is good enough, whatever the search can prove
    useful_s:    a lower bound that reaches this need not be raised

    A search whose budget ends returns the best choice so far. `seconds` makes the result depend on
    the machine; without it equal seeds give equal results.
    """

    restarts: int = 32
    evaluations: float = math.inf
    seconds: float = math.inf
    beat_s: float = math.inf
    gap: float = 0.0
    enough_s: float = -math.inf
    useful_s: float = math.inf
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise ValueError(f"a search needs at least one start, got restarts={self.restarts}")
        if not self.evaluations >= 1:
            raise ValueError(f"a search needs at least one evaluation, got {self.evaluations}")
        if not self.seconds > 0:
            raise ValueError(f"a search needs more than {self.seconds} seconds")
        if not 0 <= self.gap < math.inf:
            raise ValueError(
                "the gap that a search may leave is at least 0, such as 0.01 for 1 %, "
                f"got {self.gap}"
            )

    def less(self, spent: Sequence[Spent], beat_s: float) -> Budget:
        """What is left after searches that took so much, to beat another cost."""
        evaluations = sum(search.evaluations for search in spent)
        seconds = sum(search.seconds for search in spent)
        return replace(
            self,
            evaluations=max(1.0, self.evaluations - evaluations),
            seconds=max(1e-6, self.seconds - seconds),
            beat_s=beat_s,
        )

    @property
    def is_finite(self) -> bool:
        """Whether evaluations or seconds are limited."""
        return math.isfinite(self.evaluations) or math.isfinite(self.seconds)
