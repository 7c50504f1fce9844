"""Computation prices: one rate, or a measured curve of efficiency."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cluster.spec import Cluster
from autoddl.cost.operators import at_rate, curve_seconds, forward_seconds
from autoddl.tools.calibration.machine import efficiency_curve
from tests.clusters import cluster

DEVICE = cluster("laptop", 1, 1).device
CURVE = ((1e6, 1e9), (1e8, 1e10), (1e9, 2e10))
CURVED = dataclasses.replace(DEVICE, efficiency={"float32": CURVE})
NOTHING = np.zeros(1)


def test_points_of_the_curve_are_met_and_beyond_it_the_rate_stays():
    flops = np.array([1e5, 1e6, 1e7, 1e8, 1e9, 1e11])
    seconds = curve_seconds(CURVE, flops)
    assert seconds[[1, 3, 4]] == pytest.approx([1e-3, 1e-2, 5e-2])
    assert flops[[0, -1]] / seconds[[0, -1]] == pytest.approx([1e9, 2e10])
    assert 1e9 < flops[2] / seconds[2] < 1e10


def test_matrix_operators_use_the_curve_and_others_the_one_rate():
    flops = np.array([1e6])
    heavy = forward_seconds(CURVED, flops, NOTHING, "float32", heavy=True)
    light = forward_seconds(CURVED, flops, NOTHING, "float32")
    assert heavy[0] == pytest.approx(1e-3 + DEVICE.launch_s)
    assert light[0] == pytest.approx(1e6 / DEVICE.flops_per_s["float32"] + DEVICE.launch_s)


def test_a_dtype_without_a_curve_keeps_its_number():
    flops = np.array([1e6])
    seconds = forward_seconds(CURVED, flops, NOTHING, "float64", heavy=True)
    assert seconds[0] == pytest.approx(1e6 / DEVICE.flops_per_s["float64"] + DEVICE.launch_s)


def test_an_emulated_rate_holds_at_any_size():
    flops = np.array([1e3, 1e6, 1e12])
    device = at_rate(CURVED, 1e9)
    seconds = forward_seconds(device, flops, np.zeros(3), "float32", heavy=True)
    assert seconds - device.launch_s == pytest.approx(flops / 1e9)


points = st.lists(
    st.tuples(st.floats(1e3, 1e12), st.floats(1e-7, 10)), min_size=1, max_size=8,
    unique_by=lambda p: p[0],
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(points, st.floats(0, 1e-4), st.lists(st.floats(0, 1e13), min_size=2, max_size=20))
def test_more_flops_never_take_less_time_whatever_was_measured(measured, launch, flops):
    curve = efficiency_curve(measured, launch)
    assert [f for f, _ in curve] == sorted(f for f, _ in measured)
    seconds = curve_seconds(curve, np.sort(np.array(flops)))
    assert (np.diff(seconds) >= -2e-4 * seconds[:-1]).all()
    # the machine file takes it
    device = {**dataclasses.asdict(DEVICE), "efficiency": {"float32": [list(p) for p in curve]}}
    data = {**cluster("laptop", 1, 1).to_json(), "device": device}
    assert Cluster.from_json(data).device.efficiency == {"float32": curve}


def test_the_curve_leaves_out_what_starting_costs():
    (point,) = efficiency_curve([(1e6, 1.5e-3)], 5e-4)
    assert point == (1e6, pytest.approx(1e9))


def test_neighbours_that_contradict_share_their_time():
    curve = efficiency_curve([(1e6, 1e-3), (2e6, 9e-4), (4e6, 4e-3)], 0.0)
    assert [f / r for f, r in curve] == pytest.approx([9.5e-4, 9.5e-4, 4e-3], rel=1e-4)
