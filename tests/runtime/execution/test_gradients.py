"""Sums of gradients: in place where nobody else holds the tensor, equal to sums that are not."""

import numpy as np
import oneflow as flow

from autoddl.runtime.execution.gradients import Accumulated


def test_sums_equal_those_out_of_place_to_the_bit():
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(5)]
    sums: Accumulated[str] = Accumulated()
    wanted = parts[0]
    for number, part in enumerate(parts):
        sums.add("w", flow.tensor(part))
        wanted = wanted + part if number else wanted
    assert np.array_equal(sums.pop("w").numpy(), wanted)


def test_a_tensor_that_is_the_gradient_of_two_inputs_stays_as_it_is():
    sums: Accumulated[str] = Accumulated()
    shared, ones = flow.ones(2), flow.ones(2)
    sums.add("a", shared)
    sums.add("b", shared)
    for _ in range(3):
        sums.add("a", ones)
    assert shared.numpy().tolist() == ones.numpy().tolist() == [1.0, 1.0]
    assert sums.pop("a").numpy().tolist() == [4.0, 4.0]
    assert sums.pop("b").numpy().tolist() == [1.0, 1.0]


def test_the_second_gradient_is_added_in_place_to_one_that_nobody_else_holds():
    sums: Accumulated[str] = Accumulated()
    first = flow.ones(2)
    sums.add("w", first, is_own=True)
    sums.add("w", flow.ones(2))
    assert sums.pop("w") is first and first.numpy().tolist() == [2.0, 2.0]


def test_the_third_gradient_is_added_in_place():
    sums: Accumulated[str] = Accumulated()
    for _ in range(2):
        sums.add("w", flow.ones(2))
    total = sums.sums["w"]
    sums.add("w", flow.ones(2))
    assert sums.sums["w"] is total and total.numpy().tolist() == [3.0, 3.0]
    sums.pop("w")
    sums.add("w", flow.ones(2))
    assert total.numpy().tolist() == [3.0, 3.0]
