"""The known schemes beside a plan: all of them, or the fastest one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...cost.model import CostModel
from ..realize import Candidate
from .pricing import Baseline, BaselinePricer


@dataclass(frozen=True)
class Schemes:
    """The known schemes beside a plan, not yet priced.

    plan: None if nothing was found; tries_two: micro-batches in flight, too, where that may be
          faster than the plan
    """

    pricer: BaselinePricer
    plan: Candidate | None
    tries_two: bool

    def all(self) -> tuple[tuple[Baseline, ...], Candidate | None]:
        """The schemes, and the plan: after Ctrl-C none, if there is a plan."""
        try:
            rivals = self.pricer.all()
            if rivals and self.tries_two:
                rivals = self.pricer.in_turns(rivals, cost_to_beat(self.plan))
        except KeyboardInterrupt:
            if self.plan is None:
                raise
            return (), self.plan.ended("interrupted")
        return rivals, self.plan

    def nearest(self) -> Baseline | None:
        """The fastest of the schemes, if one fits; it alone with two micro-batches in flight."""
        found = self.pricer.nearest()
        if found is None or not self.tries_two:
            return found
        (found,) = self.pricer.in_turns([found], cost_to_beat(self.plan))
        return found

    def on(self, model: CostModel) -> Schemes:
        """The same beside a plan that is not on their cluster."""
        return replace(self, pricer=replace(self.pricer, model=model, prices=None))


def cost_to_beat(found: Candidate | None) -> float:
    """What a scheme must cost less than; tables in single precision leave a relative error."""
    return math.inf if found is None else found.step_s * (1 - 1e-6)
