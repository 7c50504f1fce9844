"""The rounds of a pairwise exchange."""

import pytest

from autoddl.runtime.oneflow.exchange import rounds


@pytest.mark.parametrize("size", range(1, 18))
def test_every_pair_meets_once_and_both_know(size):
    met = [rounds(size, index) for index in range(size)]
    assert all(sorted(row) == [i for i in range(size) if i != me] for me, row in enumerate(met))


@pytest.mark.parametrize("size", range(2, 18))
def test_pairs_meet_in_one_order(size):
    """Whoever always waits for the next on its list, all get through: no deadlock."""
    left = [rounds(size, index) for index in range(size)]
    steps = 0
    while any(left):
        pairs = {
            (i, row[0]) for i, row in enumerate(left) if row and left[row[0]][0] == i and i < row[0]
        }
        assert pairs, f"all wait: {left}"
        for a, b in pairs:
            left[a].pop(0)
            left[b].pop(0)
        steps += 1
    assert steps == size - 1 + size % 2


def test_a_power_of_two_crosses_one_level_at_a_time():
    assert rounds(4, 0) == [1, 2, 3]
    assert rounds(4, 2) == [3, 0, 1]
