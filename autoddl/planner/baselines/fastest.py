"""The fastest of several topologies whose plan keeps to the memory limit, few of them solved whole.

Every topology has ways to be planned, of which the first that has a plan counts: more and more
micro-batches, or first a lower limit. Memory ignored, its first way has a least time, which is
quickly known. The topology whose bound is the lowest is solved next, at first roughly, which gives
a better bound and a plan that the others have to beat; a search that sees that it cannot beat the
fastest plan of the others ends early, and what it had to beat bounds it from then on. `fastest`
returns the plan whose seconds no other's bound is below; what a slower one would come to, were it
to exceed the limit, is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Planned(Protocol):
    """least_s: seconds that no plan of its way falls below; is_fastest: or by too little to ask."""

    @property
    def seconds(self) -> float: ...

    @property
    def least_s(self) -> float: ...

    @property
    def is_fastest(self) -> bool: ...


Way = TypeVar("Way")
Plan = TypeVar("Plan", bound=Planned)


@dataclass
class _Topology(Generic[Way, Plan]):
    """ways: still to be tried; least_s: a bound, None if not known; plan: the first way's.

    is_fastest: whether the plan is the fastest of its way
    """

    ways: Sequence[Way]
    least_s: float | None = None
    plan: Plan | None = None
    is_fastest: bool = False

    @property
    def seconds(self) -> float:
        return math.inf if self.plan is None else self.plan.seconds


def fastest(
    topologies: Sequence[Sequence[Way]],
    bound: Callable[[Way], float],
    solve: Callable[[Way, float, bool], Plan | None],
    may_fit: Callable[[Way], bool],
    smaller: Callable[[Way, Plan], Sequence[Way] | None],
) -> Plan | None:
    """None if no topology has a plan that keeps to the limit.

    topologies: the ways of each
    bound:      seconds that no plan of a way falls below, nor one of the topology's later ways
    solve:      a way's fastest plan, None if it has none; or only a rough one, if the last argument
                is true. Where all take the given seconds or more, any plan or none
    may_fit:    whether a way has a plan
    smaller:    ways to try instead of a plan that exceeds the limit after all; None if it does not
    """
    left = [_Topology[Way, Plan](ways) for ways in topologies if ways]
    while left:
        for topology in left:
            if topology.least_s is None:
                topology.least_s = bound(topology.ways[0])
        least = [math.inf if t.least_s is None else t.least_s for t in left]
        number = min(range(len(left)), key=lambda n: (least[n], not left[n].is_fastest))
        best = left[number]
        if best.plan is not None and best.is_fastest:
            instead = smaller(best.ways[0], best.plan)
            if instead is None:
                return best.plan
            left[number] = best = _Topology(instead)
        else:
            others = (t.seconds for t in left if t is not best)
            _solve(best, min(others, default=math.inf), least[number], solve, may_fit)
        if not best.ways:
            del left[number]
    return None


def _solve(
    topology: _Topology[Way, Plan],
    beat_s: float,
    least_s: float,
    solve: Callable[[Way, float, bool], Plan | None],
    may_fit: Callable[[Way], bool],
) -> None:
    """Solve the first way, roughly if it has not been."""
    way, is_rough = topology.ways[0], topology.plan is None
    plan = solve(way, beat_s, is_rough)
    if plan is not None and (plan.is_fastest or not is_rough and plan.seconds <= beat_s):
        topology.plan, topology.least_s, topology.is_fastest = plan, plan.seconds, True
    elif plan is not None and is_rough:
        topology.plan, topology.least_s = plan, max(least_s, plan.least_s)
    elif not is_rough or (beat_s < math.inf and may_fit(way)):
        assert beat_s < math.inf, "a way that had a plan has none"
        topology.least_s = max(least_s, beat_s)
    else:
        topology.ways, topology.least_s = topology.ways[1:], None
