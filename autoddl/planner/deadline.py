"""When planning in stages is to end: after a budget of seconds, or at once after Ctrl-C."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from .options import PlanOptions

_LEAST_S = 1e-6  # that a part of the planning gets, which finds some plan all the same


@dataclass
class Deadline:
    """seconds: from when it `started`; 0 once Ctrl-C was pressed."""

    seconds: float
    started: float = field(default_factory=time.perf_counter)

    @staticmethod
    def of(options: PlanOptions) -> Deadline:
        """From now on."""
        return Deadline(math.inf if options.budget_seconds is None else options.budget_seconds)

    @property
    def left_s(self) -> float:
        """Seconds until then, at least some."""
        return max(_LEAST_S, self.started + self.seconds - time.perf_counter())

    @property
    def is_over(self) -> bool:
        return self.left_s == _LEAST_S

    def part(self, share: float) -> Deadline:
        """Of what may take this share of the time that is left."""
        return Deadline(self.left_s * share)

    def budget_s(self, share: float) -> float | None:
        """`PlanOptions.budget_seconds` of the same."""
        return None if self.seconds == math.inf else max(_LEAST_S, self.left_s * share)

    def end(self) -> None:
        """Nothing more is looked for, as after Ctrl-C."""
        self.seconds = 0.0

    @property
    def was_ended(self) -> bool:
        return self.seconds == 0.0
