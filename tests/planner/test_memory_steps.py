"""The memory limit lowered step by step: plans until none exists, and then what is missing."""

import re

import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.memory.rules import compiles
from tests.clusters import cluster
from tests.graphs import attention, mlp

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
CASES = {
    "mlp": (mlp(256, (256, 512, 512, 256)), (2, 2)),
    "attention": (attention(2, 16, 32, 128, 4), (2, 2)),
}


@pytest.mark.parametrize("name", ["attention", pytest.param("mlp", marks=pytest.mark.full)])
def test_plans_are_found_until_none_exists(name):
    graph, shape = CASES[name]
    where = cluster("gcp_a100", *shape)
    limit = (
        stage_figures(find_plan(graph, where, PlanOptions(baselines=False)).stage)
        .memory_peak("executor")
        .bytes
    )
    stages, parts, steps = set(), set(), 0
    while True:
        try:
            plan = find_plan(graph, where, PlanOptions(memory_limit_bytes=limit, baselines=False))
        except ValueError as error:
            text = str(error)
            break
        peak = stage_figures(plan.stage).memory_peak("executor").bytes
        assert peak <= limit
        assert stage_figures(plan.stage).memory_peak("graph").bytes <= limit or not compiles(
            stage_figures(plan.stage).step
        )
        stages |= {edge.zero_stage for edge in plan.stage.edges.values()}
        parts.add(plan.micro_batches)
        steps += 1
        limit = 0.85 * min(peak, limit)
    assert steps >= 4 and len(parts) > 1
    if name == "attention":  # the MLP is faster with more micro-batches than with ZeRO
        assert stages & {1, 2, 3}
    found = re.search(
        r"smallest found needs ([\d.e+]+) (\w+),.* The largest layers are (\S+)", text
    )
    assert found is not None, text
    smallest = float(found[1]) * UNITS[found[2]]
    assert smallest > limit


@pytest.mark.parametrize(
    ("name", "shape"), [("mlp", (2, 2)), ("attention", (1, 4)), ("attention", (2, 1))]
)
def test_what_a_refusal_calls_the_smallest_is_a_plan_and_less_is_refused(name, shape):
    graph, where = CASES[name][0], cluster("gcp_a100", *shape)
    smallest = refused(graph, where, 1.0)
    plan = find_plan(graph, where, PlanOptions(memory_limit_bytes=smallest))
    assert stage_figures(plan.stage).memory_peak("executor").bytes <= smallest
    assert stage_figures(plan.stage).memory_peak("graph").bytes <= smallest or not compiles(
        stage_figures(plan.stage).step
    )
    assert refused(graph, where, 0.95 * smallest) == smallest


def refused(graph, where, limit) -> float:
    """The footprint that is named, bytes."""
    with pytest.raises(ValueError) as error:
        find_plan(graph, where, PlanOptions(memory_limit_bytes=limit))
    found = re.search(r"smallest found needs ([\d.]+) (\w+),", str(error.value))
    assert found is not None, error.value
    return float(found[1]) * UNITS[found[2]]


def test_what_fits_a_lower_limit_is_found_at_a_higher_one():
    """At 4.8 MB the fullest moment of the best plan by sums does not fit, at 4.41 MB it does."""
    graph, shape = CASES["mlp"]
    where = cluster("gcp_a100", *shape)
    seconds = [
        figures(
            find_plan(graph, where, PlanOptions(memory_limit_bytes=limit, baselines=False))
        ).cost.iteration_s
        for limit in (4.8e6, 4.69e6, 4.41e6, 4.2e6)
    ]
    assert seconds == sorted(seconds) and seconds[0] < seconds[-1]
