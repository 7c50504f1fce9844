"""The fastest of several topologies whose plan keeps to the memory limit, few of them solved whole.

Every topology has ways to be planned, of which the first that has a plan counts: more and more
micro-batches, or first a lower limit. Memory ignored, its first way has a least time, which is
quickly known. The topology whose bound is the lowest is solved next, and has to beat the fastest
plan so far; a search that sees that it cannot ends early, and what it had to beat bounds it from
then on. `fastest` returns the plan whose seconds no other's bound is below; what a slower one would
come to, were it to exceed the limit, is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Planned(Protocol):
    @property
    def seconds(self) -> float: ...


Way = TypeVar("Way")
Plan = TypeVar("Plan", bound=Planned)


@dataclass
class _Topology(Generic[Way, Plan]):
    """ways: still to be tried; least_s: a bound, None if not known; plan: the first way's."""

    ways: Sequence[Way]
    least_s: float | None = None
    plan: Plan | None = None


def fastest(
    topologies: Sequence[Sequence[Way]],
    bound: Callable[[Way], float],
    solve: Callable[[Way, float], Plan | None],
    may_fit: Callable[[Way], bool],
    smaller: Callable[[Way, Plan], Sequence[Way] | None],
) -> Plan | None:
    """None if no topology has a plan that keeps to the limit.

    topologies: the ways of each
    bound:      seconds that no plan of a way falls below, nor one of the topology's later ways
    solve:      a way's fastest plan, None if it has none. Of one that takes the given seconds or
                more anything may be returned
    may_fit:    whether a way has a plan
    smaller:    ways to try instead of a plan that exceeds the limit after all; None if it does not
    """
    left = [_Topology[Way, Plan](ways) for ways in topologies if ways]
    while left:
        for topology in left:
            if topology.least_s is None:
                topology.least_s = bound(topology.ways[0])
        least = [math.inf if t.least_s is None else t.least_s for t in left]
        number = min(range(len(left)), key=lambda n: (least[n], left[n].plan is None))
        best = left[number]
        if best.plan is not None:
            instead = smaller(best.ways[0], best.plan)
            if instead is None:
                return best.plan
            best.ways, best.least_s, best.plan = instead, None, None
        else:
            beat_s = min((s for s, t in zip(least, left, strict=True) if t.plan), default=math.inf)
            plan = solve(best.ways[0], beat_s)
            if plan is not None and plan.seconds < beat_s:
                best.plan, best.least_s = plan, plan.seconds
            elif beat_s < math.inf and (plan is not None or may_fit(best.ways[0])):
                best.least_s = beat_s
            else:
                best.ways, best.least_s = best.ways[1:], None
        if not best.ways:
            del left[number]
    return None
