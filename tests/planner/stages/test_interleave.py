"""The cuts of an interleaved pipeline."""

import itertools

import pytest

from autoddl.planner.stages.partition import interleaved_partition
from autoddl.planner.stages.task import equal_shapes
from autoddl.plans.stage import StagePrice

SECONDS = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0)


def price(first, last, shape, micro_batches, held):
    return StagePrice(sum(SECONDS[first:last]) / 2, sum(SECONDS[first:last]) / 2, 0.1)


def test_the_slowest_part_is_as_fast_as_can_be():
    found = interleaved_partition(len(SECONDS), 2, 2, 2, 2, 4, price)
    bounds = itertools.combinations(range(1, len(SECONDS)), 3)
    least = min(
        max(sum(SECONDS[a:b]) for a, b in itertools.pairwise((0, *cut, len(SECONDS))))
        for cut in bounds
    )
    assert max(s.price.forward_s + s.price.backward_s for s in found.stages) == least
    assert found.seconds == pytest.approx((4 * 2 + 1) * least + 0.2)
    assert [s.place.first_node for s in found.stages] == [0, 1, 0, 1]
    assert [s.last for s in found.stages[:-1]] == [s.first for s in found.stages[1:]]


def test_equal_stages():
    assert equal_shapes(4, 2, 2) == (2, 2, 0, 0)
    assert equal_shapes(2, 4, 4) == (1, 2, 0, 0)
    assert equal_shapes(1, 8, 2) == (1, 4, 0, 0)
    with pytest.raises(ValueError, match="do not divide into 3 parts"):
        equal_shapes(4, 2, 3)
    with pytest.raises(ValueError, match="2 stages of 5 parts are more than the model's 9 layers"):
        interleaved_partition(9, 2, 2, 2, 5, 4, price)
