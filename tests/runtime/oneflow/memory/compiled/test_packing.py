"""Offsets: nothing overlaps, and the known case that fragments."""

from hypothesis import given
from hypothesis import strategies as st

from autoddl.runtime.oneflow.memory.compiled.packing import packed_bytes

LIFETIMES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 8), st.integers(0, 4)).map(
        lambda item: (item[0], item[1], item[1] + item[2])
    ),
    max_size=12,
)


def one_by_one(lifetimes):
    """The same rule by trying every offset in turn."""
    placed = []
    for size, first, last in sorted(
        (item for item in lifetimes if item[0]), key=lambda item: (-item[0], item[1])
    ):
        met = [p for p in placed if p[1] <= last and first <= p[2]]
        offset = 0
        while any(offset < p[3] + p[0] and p[3] < offset + size for p in met):
            offset += 1
        placed.append((size, first, last, offset))
    return max((p[0] + p[3] for p in placed), default=0)


@given(LIFETIMES)
def test_packing_is_largest_first_to_the_lowest_place(lifetimes):
    assert packed_bytes(lifetimes) == one_by_one(lifetimes)


@given(LIFETIMES)
def test_packing_needs_at_least_what_lives_at_once(lifetimes):
    alive = [sum(n for n, a, b in lifetimes if a <= t <= b) for t in range(14)]
    assert packed_bytes(lifetimes) >= max(alive)


def test_a_gap_between_two_places_may_be_too_small():
    # the two of 3 leave no room of 4 beneath the one that outlives the other
    lifetimes = [(4, 4, 5), (3, 0, 2), (3, 1, 4), (2, 3, 5)]
    assert packed_bytes(lifetimes) == one_by_one(lifetimes)
