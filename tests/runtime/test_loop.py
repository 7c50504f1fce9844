"""The loop around the step, feature by feature, equals one process (`loop_cells`)."""

import json

import pytest

from tests.runtime.loop_cells import PLACES, cases


@pytest.mark.full
@pytest.mark.parametrize("place", PLACES)
def test_each_part_of_a_loop_is_that_of_one_process(launch, place):
    every = cases(place)
    out = launch("loop", 4, json.dumps(every), timeout=900)
    assert out.count("equal: ") == len(every), out
