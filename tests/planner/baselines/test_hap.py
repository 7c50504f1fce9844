"""HAP's rules on hosts of two kinds."""

import dataclasses

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.schemes import baseline_plans
from autoddl.plans.figures import figures
from tests.graphs import attention, mlp
from tests.planner.test_shares import seconds, tiny_cases, unlike

NAME = "HAP's rules"
WIDE = mlp(256, (256, 1024, 1024, 256))


@pytest.mark.parametrize(
    "graph", [WIDE, pytest.param(attention(16, 16, 64, 256, 4), marks=pytest.mark.full)]
)
def test_all_axes_are_one_and_pieces_are_filled_up(graph):
    where = unlike(1, 1, 2, factor=3.0, link=3.0)
    record, plan = baseline_plans(graph, where)[NAME]
    assert plan is not None
    plan.verify()
    stage = plan.stage
    placed = [nd for op in stage.ops.values() for nd in (*op.ins, *op.outs)]
    assert all(len(set(nd)) == 1 for nd in placed), "one axis, so one way to split"
    assert any(nd[0].is_split for nd in placed)
    steps = [s for e in stage.edges.values() for s in (*e.forward, *e.backward)]
    assert steps and not any("balanced" in step.way for step in steps)
    assert record.topology.endswith(f"shares {':'.join(map(str, stage.shares))}")
    assert record.iteration_s == seconds(plan)
    ours = find_plan(graph, where, PlanOptions(baselines=False))
    assert seconds(ours) <= seconds(plan) * (1 + 1e-4)


@pytest.mark.full
def test_a_mesh_of_several_axes_is_ahead_and_one_axis_is_level_on_one():
    """Splits inside hosts, whose links are fast, and copies between them are not in its space."""
    several, one = unlike(1, 1, 2, link=0.3), unlike(1, 1, 1, link=0.3)
    for where, ahead in ((several, 1.05), (one, 1.0)):
        ours = find_plan(WIDE, where, PlanOptions(baselines=False, zero=False))
        _, plan = baseline_plans(WIDE, where)[NAME]
        assert plan is not None
        assert seconds(plan) >= ahead * seconds(ours) * (1 - 1e-4)
        if where is one:
            assert seconds(plan) <= seconds(ours) * 1.01


def test_it_is_told_what_it_needs_where_nothing_fits():
    where = unlike(1, 1, 2)
    options = PlanOptions(memory_limit_bytes=1e6)
    record, plan = baseline_plans(WIDE, where, options)[NAME]
    assert plan is None and not record.fits
    _, free = baseline_plans(WIDE, where)[NAME]
    assert free is not None and record.memory_bytes == max(figures(free).needed_bytes)


def test_hosts_that_are_alike_have_no_such_scheme():
    where = unlike()
    assert NAME not in baseline_plans(WIDE, where, PlanOptions(shares="2:1"))
    assert NAME not in baseline_plans(WIDE, dataclasses.replace(where, groups=()))


@pytest.mark.full
@pytest.mark.parametrize("overlap", [False, True])
def test_no_plan_is_behind_them(overlap):
    for number, (graph, where) in enumerate(tiny_cases(11, 12)):
        on = dataclasses.replace(where, gpus_per_node=1 + number % 2)
        options = PlanOptions(overlap=overlap, baselines=False)
        asked = dataclasses.replace(options, baselines=True)
        _, plan = baseline_plans(graph, on, asked)[NAME]
        assert plan is not None
        assert seconds(find_plan(graph, on, options)) <= seconds(plan) * (1 + 1e-4)
