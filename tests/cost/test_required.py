"""What the limit is held against: the executor's step, and nn.Graph's where it compiles."""

import math
import subprocess
import sys

import pytest

from autoddl.cost.liveness import required_bytes
from autoddl.cost.memory_rules import rules_of
from autoddl.planner.baselines import forced
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp


def planned(letters, nodes=2, gpus=2, **options) -> Plan:
    where = cluster("gcp_a100", nodes, gpus)
    graph = mlp(1024, (1024,) * 4)
    return find_plan(graph, where, PlanOptions(**options), space=forced(graph, where.mesh, letters))


def needed(plan: Plan, limit: float = math.inf) -> int:
    predicted = stage_figures(plan.stage)
    return required_bytes(predicted.step, predicted.model.memory_rules, limit)


def test_the_larger_of_both_counts():
    """nn.Graph packs what it sends, and has accumulators beside the gradients."""
    plan = planned(("S0", "S0"), micro_batches=4, optimizer="sgd")
    executor, graph = (
        stage_figures(plan.stage).memory_peak(runtime).bytes for runtime in ("executor", "graph")
    )
    assert executor < graph == needed(plan)


def test_what_the_executor_cannot_hold_is_not_compiled():
    plan = planned(("S0", "S0"), micro_batches=4, optimizer="sgd")
    executor = stage_figures(plan.stage).memory_peak("executor").bytes
    assert needed(plan, limit=executor - 1) == executor


@pytest.mark.parametrize(
    ("letters", "nodes", "gpus", "expected"),
    [(("S0", "S1"), 2, 2, True), (("S0", "B", "S1"), 2, 4, False)],
)
def test_meshes_of_two_axes_compile(letters, nodes, gpus, expected):
    plan = planned(letters, nodes, gpus)
    assert (
        stage_figures(plan.stage).model.memory_rules.compiles(stage_figures(plan.stage).step)
        == expected
    )
    if not expected:
        assert needed(plan) == stage_figures(plan.stage).memory_peak("executor").bytes


@pytest.mark.parametrize(("nodes", "counts_more"), [(1, False), (2, True)])
def test_where_chains_are_not_known_the_compiled_step_counts_a_little_more(nodes, counts_more):
    """Blocks are run again, micro-batches accumulated, on one axis and on two."""
    graph = mlp(1024, (1024,) * 4)
    where = cluster("gcp_a100", nodes, 2)
    letters = ("S0", "S1")[:nodes]
    space = forced(graph, where.mesh, letters)
    plan = find_plan(graph, where, PlanOptions(micro_batches=4, checkpointing="all"), space=space)
    assert plan.recomputed and stage_figures(plan.stage).model.memory_rules.compiles(
        stage_figures(plan.stage).step
    )
    peaks = [
        stage_figures(plan.stage).memory_peak(runtime).bytes for runtime in ("executor", "graph")
    ]
    assert (needed(plan) > max(peaks)) == counts_more


def test_an_unknown_back_end_is_refused():
    told = "unknown back end 'abacus'; autoddl comes with 'oneflow'"
    with pytest.raises(ValueError, match=told):
        rules_of("abacus")
    plan = planned(("S0", "S0"))
    assert plan.stage.back_end == "oneflow" and '"back_end": "oneflow"' in plan.dumps()
    with pytest.raises(ValueError, match=told):
        stage_figures(plan.changed(back_end="abacus").stage).memory_peak()


def test_the_rules_of_oneflow_need_no_oneflow():
    """Plans are also made where it is not installed."""
    code = "import sys; sys.modules['oneflow'] = None\n"
    code += "from autoddl.cost.memory_rules import rules_of; assert rules_of('oneflow').operators"
    subprocess.run([sys.executable, "-c", code], check=True)
