"""The fastest of several topologies: as if all of them were solved whole, with fewer solved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from autoddl.planner.baselines.fastest import fastest


@dataclass(frozen=True)
class Way:
    """seconds: of its plan, None if it has none; exceeds: the limit, after all."""

    seconds: float | None
    bound: float
    exceeds: bool = False


@dataclass(frozen=True)
class Plan:
    seconds: float
    least_s: float = 0.0

    @property
    def is_fastest(self) -> bool:
        return self.seconds == self.least_s


@st.composite
def topologies(draw):
    """Ways; bounds hold for later ways, too, and none is faster than an earlier that exceeds."""
    found = []
    for number in range(draw(st.integers(0, 4))):
        ways: list[Way] = []
        least = 30
        for _ in range(draw(st.integers(0, 4))):
            seconds, exceeds = draw(st.none() | st.integers(0, 20)), draw(st.booleans())
            if seconds is not None and exceeds:
                seconds = min(seconds, least)
            least = min(least, 30 if seconds is None else seconds)
            # apart from those of other topologies, so that there is one fastest
            own = None if seconds is None else seconds + number / 10
            ways.insert(0, Way(own, draw(st.integers(0, least)), exceeds))
        found.append(ways)
    return found


def first_that_keeps(ways):
    return next((w.seconds for w in ways if w.seconds is not None and not w.exceeds), math.inf)


@given(topologies(), st.booleans(), st.sampled_from([0.0, 1.5, 30.0]))
def test_it_is_the_fastest_of_all(every, gives_up, slower):
    def solve(way, beat_s, roughly):
        if way.seconds is None or (gives_up and way.seconds >= beat_s):
            return None
        if roughly:
            return Plan(way.seconds + slower, way.bound)
        return Plan(way.seconds, way.seconds)

    def smaller(way, plan):
        assert plan.seconds == way.seconds
        ways = next(own for own in every if any(w is way for w in own))
        place = next(n for n, w in enumerate(ways) if w is way)
        return ways[place + 1 :] if way.exceeds else None

    found = fastest(
        every, lambda way: way.bound, solve, lambda way: way.seconds is not None, smaller
    )
    expected = min(map(first_that_keeps, every), default=math.inf)
    assert (math.inf if found is None else found.seconds) == expected


def test_what_cannot_be_faster_is_not_solved():
    slow, near, fast = Way(9.0, 8.0), Way(3.0, 1.5), Way(2.0, 1.0)
    solved = []

    def solve(way, beat_s, roughly):
        solved.append((way, beat_s, roughly))
        return Plan(way.seconds + roughly, way.seconds)

    def of(*ways):
        solved.clear()
        return fastest([[w] for w in ways], lambda w: w.bound, solve, lambda w: True, keep)

    def keep(way, plan):
        return None

    alone = [(fast, math.inf, True), (fast, math.inf, False)]
    assert of(slow, fast) == Plan(2.0, 2.0) and solved == alone
    assert of(near, fast) == Plan(2.0, 2.0)
    assert solved == [(fast, math.inf, True), (near, 3.0, True), (fast, 4.0, False)]
