"""Seconds of operators: by one rate, a measured curve of efficiency, or each measured by itself."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl import explain
from autoddl.cluster.spec import Cluster, OperatorTimes
from autoddl.cost.operators import (
    at_rate,
    computes,
    curve_seconds,
    forward_seconds,
    measured_seconds,
    operator_key,
    whole_work,
)
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import columns, stage_figures
from autoddl.sbp.signature import find_rule
from autoddl.tools.calibration.machine import efficiency_curve, operator_times
from tests.clusters import cluster
from tests.graphs import mlp

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


GRAPH = mlp(64, (256, 512, 128))
POINTS = OperatorTimes(((1e3, 1e-4, 0.0), (1e5, 1e-3, 3e-3)))


def computing(graph):
    rules = ((op, find_rule(op.kind)) for op in graph.ops)
    return [op for op, rule in rules if rule and computes(graph.spec(op), rule)]


def heavy(op):
    rule = find_rule(op.kind)
    assert rule is not None
    return rule.heavy


def measured(machine, factor):
    """`machine` where each operator takes `factor` ns forward and twice that backward per work."""
    operators = {}
    for op in computing(GRAPH):
        done = whole_work(GRAPH.spec(op))
        operators[operator_key(GRAPH, op)] = OperatorTimes(
            ((done, factor * 1e-9 * done, 2 * factor * 1e-9 * done),)
        )
    return dataclasses.replace(
        machine, device=dataclasses.replace(machine.device, operators=operators, launch_s=0.0)
    )


def test_an_operator_is_known_at_any_batch_but_not_at_another_width():
    keys = [operator_key(GRAPH, op) for op in computing(GRAPH)]
    halved = GRAPH.with_batch(32)
    assert [operator_key(halved, op) for op in computing(halved)] == keys
    wider = mlp(64, (256, 1024, 128))
    assert operator_key(wider, computing(wider)[0]) != keys[0]
    assert "nx256 float32" in keys[0]


def test_points_are_met_and_beyond_them_the_rate_stays_but_for_the_start():
    forward_s, backward_s = measured_seconds(POINTS, 1e-5, np.array([1.0, 1e3, 1e4, 1e5, 1e6]))
    assert forward_s[[0, 1, 3, 4]] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])
    assert 1e-4 < forward_s[2] < 1e-3
    assert backward_s[[3, 4]] == pytest.approx([3e-3, 3e-2])


def test_an_operator_without_a_backward_pass_has_none():
    points = OperatorTimes(((1e3, 1e-4, 0.0), (1e4, 1e-3, 0.0)))
    assert not measured_seconds(points, 1e-5, np.array([1e2, 1e5]))[1].any()


point = st.tuples(st.floats(1, 1e12), st.floats(1e-7, 10), st.floats(0, 10))


@settings(max_examples=50, deadline=None)
@given(st.lists(point, min_size=1, max_size=8), st.lists(st.floats(1, 1e13), min_size=2))
def test_more_work_never_takes_less_time_whatever_was_measured(points, work):
    for seconds in measured_seconds(operator_times(points), 1e-6, np.array(sorted(work))):
        assert (np.diff(seconds) >= -1e-9 * seconds[1:]).all()


def test_a_plan_costs_what_was_measured_of_its_operators():
    machine = measured(cluster("piz_daint", 2, 2), 5.0)
    plan = find_plan(GRAPH, machine, PlanOptions(micro_batches=1), space=data_parallel(GRAPH))
    expected = 0.0
    for op in computing(plan.graph):
        spec, placed = plan.graph.spec(op), plan.stage.ops[op.name]
        parts = [
            tensor.bytes / (4 if nd[0].is_split else 1)
            for tensor, nd in zip(
                (*spec.inputs, *spec.outputs), (*placed.ins, *placed.outs), strict=True
            )
        ]
        done = whole_work(spec) / 4 if heavy(op) else sum(parts)
        passes = 3 if op.outputs[0] in plan.graph.needs_grad else 1
        expected += passes * 5e-9 * done
    assert figures(plan).cost.compute_s == pytest.approx(expected)


def test_the_search_divides_more_where_operators_are_slow():
    """Slow links, and computation that costs nothing or much: the measured one decides."""
    machine = cluster("laptop", 2, 2)
    slow_links = dataclasses.replace(
        machine, inter=dataclasses.replace(machine.inter, beta_s_per_byte=1e-6)
    )
    cheap = find_plan(GRAPH, measured(slow_links, 1e-6))
    dear = find_plan(GRAPH, measured(slow_links, 1e3), PlanOptions(overlap=False))
    assert figures(cheap).cost.nic_bytes.total < figures(dear).cost.nic_bytes.total
    assert dear.stage.search.lower_bound_s is not None
    assert figures(dear).cost.iteration_s == pytest.approx(
        dear.stage.search.lower_bound_s, rel=1e-5
    )


def test_a_stage_has_the_forward_and_backward_seconds_measured():
    plan = find_plan(GRAPH, measured(cluster("piz_daint", 1, 1), 5.0), PlanOptions(micro_batches=1))
    parts = columns(plan.graph, stage_figures(plan.stage).model, plan.stage.ops, plan.stage.edges)
    for op in computing(plan.graph):
        done = whole_work(plan.graph.spec(op))
        backward_s = 1e-8 * done if op.outputs[0] in plan.graph.needs_grad else 0.0
        assert parts[op.name][:2] == pytest.approx([5e-9 * done, backward_s])


def test_a_plan_says_how_many_of_its_operators_were_timed():
    machine = cluster("piz_daint", 2, 2)
    assert "timed" not in explain(find_plan(GRAPH, machine))
    found = find_plan(GRAPH, measured(machine, 5.0))
    assert stage_figures(found.stage).timed.timed == stage_figures(found.stage).timed.computing > 0
    assert "operators were timed by themselves" in explain(found)
    # of another width only what does not depend on it is known
    other = find_plan(mlp(64, (256, 512, 64)), measured(machine, 5.0))
    assert 0 < stage_figures(other.stage).timed.timed < stage_figures(other.stage).timed.computing
    assert "calibrate with --model" in explain(other)
