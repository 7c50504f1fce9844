"""Seconds of an operator on each of several kinds of hosts."""

import dataclasses

import pytest

import autoddl
from autoddl.cluster.spec import HostGroup
from autoddl.cost.account import operator_seconds
from autoddl.cost.operators import at_rate
from autoddl.planner.baselines import data_parallel
from autoddl.planner.planner import find_plan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp


@pytest.mark.parametrize(("shares", "slower"), [("3:1", 1.0), ("even", 3.0), ("7:1", 3 / 7)])
def test_a_device_takes_as_long_as_its_own_part_of_the_rows(shares, slower):
    """Two hosts, one 3 times as fast; the plan counts the one that takes longest."""
    where = cluster("gcp_a100", 4, 1)
    device = dataclasses.replace(where.device, memory_bandwidth_bytes_per_s=1e15, launch_s=0.0)
    groups = tuple(
        HostGroup(name, 2, device=at_rate(device, n)) for name, n in (("a", 3), ("b", 1))
    )
    where = dataclasses.replace(where, groups=groups)
    graph = mlp(64, (16, 16))
    options = autoddl.PlanOptions(shares=shares, baselines=False, micro_batches=1)
    stage = find_plan(graph, where, options, space=data_parallel(graph)).stage
    model, name = stage_figures(stage).model, next(o for o in graph.ops if o.kind == "matmul").name
    op = next(o for o in stage.graph.ops if o.name == name)
    kinds = [model.cluster.kind_of(node) for node in range(4)]
    assert kinds[0] == kinds[1] != kinds[2] == kinds[3]
    fast, slow = (operator_seconds(stage.graph, model, op, stage.ops[name], k) for k in kinds[::2])
    assert [b / a for a, b in zip(fast, slow, strict=True)] == pytest.approx([slower] * 2)
    counted = operator_seconds(stage.graph, model, op, stage.ops[name])
    assert counted == max(fast, slow)
