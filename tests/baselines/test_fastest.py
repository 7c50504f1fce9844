"""The fastest of several topologies: as if all of them were solved whole, with fewer solved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from autoddl.baselines.fastest import fastest


@dataclass(frozen=True)
class Way:
    """seconds: of its plan, None if it has none; exceeds: the limit, after all."""

    seconds: float | None
    bound: float
    exceeds: bool = False


@dataclass(frozen=True)
class Plan:
    seconds: float


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


@given(topologies(), st.booleans())
def test_it_is_the_fastest_of_all(every, gives_up):
    solved = []

    def solve(way, beat_s):
        solved.append(way)
        if way.seconds is None or (gives_up and way.seconds >= beat_s):
            return None
        return Plan(way.seconds)

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
    slow, fast = Way(9.0, 8.0), Way(2.0, 1.0)
    solved = []

    def solve(way, beat_s):
        solved.append((way, beat_s))
        return Plan(way.seconds)

    found = fastest([[slow], [fast]], lambda w: w.bound, solve, lambda w: True, lambda w, p: None)
    assert found == Plan(2.0) and solved == [(fast, math.inf)]
    solved.clear()
    near = Way(3.0, 1.5)
    found = fastest([[near], [fast]], lambda w: w.bound, solve, lambda w: True, lambda w, p: None)
    assert found == Plan(2.0) and solved == [(fast, math.inf), (near, 2.0)]
