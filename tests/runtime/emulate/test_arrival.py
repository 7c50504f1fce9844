"""A message is there when its last element is, whatever it holds."""

import oneflow as flow
import pytest

from autoddl.runtime.emulate.arrival import Arrival
from autoddl.runtime.oneflow.backend import OneFlow


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_is_there_when_its_last_element_is(dtype):
    arrival = Arrival(3, dtype, OneFlow("cpu"))
    assert not arrival.is_there
    arrival.tensor[:2] = 0
    assert not arrival.is_there
    arrival.tensor[2:] = 0
    assert arrival.tensor.tolist() == [0, 0, 0] and arrival.is_there


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), -1.0])
def test_any_number_that_comes_is_seen(value):
    """Also what a diverged model sends."""
    arrival = Arrival(2, "float32", OneFlow("cpu"))
    arrival.tensor[1:] = value
    flow._oneflow_internal.eager.Sync()
    assert arrival.is_there
