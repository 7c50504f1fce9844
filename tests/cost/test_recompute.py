"""What blocks that run forward again cost and save."""

import dataclasses

import pytest

from autoddl import explain
from autoddl.cost.operators import computes
from autoddl.cost.recompute import Recomputation
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel, forced
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.format import format_bytes
from autoddl.plans.stage_figures import stage_figures
from autoddl.sbp.signature import find_rule
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual

ROWS, WIDTH, LAYERS = 1024, 256, 6
ACT = ROWS * WIDTH * 4


def planned(graph, nodes=1, gpus=1, space=None, **options):
    return find_plan(
        graph,
        cluster("gcp_a100", nodes, gpus),
        PlanOptions(checkpointing="none", **options),
        space=space,
    )


def again(plan: Plan, blocks=None):
    blocks = repeated_blocks(plan.graph) if blocks is None else blocks
    return plan.changed(recomputed=blocks)


def test_what_leaves_a_block_is_kept_and_of_the_rest_one_block():
    """A layer makes a product, a sum and a ReLU; only the ReLU leaves it."""
    plan = planned(mlp(ROWS, (WIDTH,) * (LAYERS + 1)))
    saved = figures(plan).cost.memory_bytes - figures(again(plan)).cost.memory_bytes
    loss = 4  # comes after the blocks
    # of one block's product: output, weight, and input, which the first block's has none of
    gradients = ACT + 4 * WIDTH * WIDTH + ACT * (LAYERS - 1) / LAYERS
    after = ACT  # the last block's sum, which is gone then
    assert saved == pytest.approx((LAYERS - 1) * 2 * ACT + after + loss - gradients)
    by_search = find_plan(
        plan.graph, plan.cluster, PlanOptions(checkpointing="all", baselines=False)
    )
    assert figures(by_search).cost.memory_bytes == pytest.approx(
        figures(again(plan)).cost.memory_bytes
    )


def test_a_view_that_leaves_a_block_keeps_what_it_shows():
    graph = residual(3, 8, 8).with_forks()
    blocks = repeated_blocks(graph)
    assert blocks[0][-1].endswith(".fork")
    assert blocks[0][-2] in Recomputation(graph, blocks).leaving


def test_computation_is_that_of_three_passes_instead_of_two():
    device = dataclasses.replace(cluster("gcp_a100", 1, 1).device, launch_s=0.0)
    where = dataclasses.replace(cluster("gcp_a100", 1, 1), device=device)
    plan = find_plan(mlp(ROWS, (4096,) * 3), where, PlanOptions(checkpointing="none"))
    products = [op for op in plan.graph.ops if op.kind == "matmul"]
    for op in products:
        assert stage_figures(again(plan).stage).costs[op.name].compute_s == pytest.approx(
            stage_figures(plan.stage).costs[op.name].compute_s * 4 / 3
        )


def test_forward_redistributions_are_paid_twice_and_gradients_once():
    graph = attention(3, 8, 64, 128, 4)
    plan = planned(graph, 1, 4, space=forced(graph, cluster("gcp_a100", 1, 4).mesh, ["B", "S1"]))
    inside = {name for block in repeated_blocks(plan.graph) for name in block}
    twice = again(plan)
    for op in plan.graph.ops:
        before, after = (
            stage_figures(plan.stage).costs[op.name].intra_bytes,
            stage_figures(twice.stage).costs[op.name].intra_bytes,
        )
        assert after.forward == before.forward * (2 if op.name in inside else 1)
        assert (after.backward, after.gradient_sync) == (before.backward, before.gradient_sync)
    assert figures(twice).cost.intra_bytes.forward > figures(plan).cost.intra_bytes.forward


@pytest.mark.parametrize("runtime", ["graph", "executor"])
def test_the_fullest_moment_has_one_block(runtime):
    """Twice as many layers add their inputs to it, and nothing else.

    The executor's is in the first layer's backward pass, when the inputs of the others are gone and
    all parameters' gradients are there.
    """

    def activations(layers):
        graph = attention(layers, 8, 64, 128, 4)
        plan = again(planned(graph, 1, 2, space=data_parallel(graph)))
        peak = stage_figures(plan.stage).memory_peak(runtime)
        return peak.by_cause["activations"] + peak.by_cause.get("gradients", 0)

    rows = 4 * 64 * 128 * 4
    parameters = 4 * 128 * 128 * 4
    assert activations(8) - activations(4) == 4 * (parameters if runtime == "executor" else rows)


def test_search_tables_agree_with_the_account():
    graph = attention(4, 8, 64, 128, 4)
    where = cluster("piz_daint", 4, 1)
    for parts in (1, 2):
        plan = find_plan(
            graph, where, PlanOptions(micro_batches=parts, checkpointing="all", baselines=False)
        )
        assert plan.recomputed and plan.stage.search.lower_bound_s is not None
        assert plan.stage.search.lower_bound_s <= figures(plan).cost.iteration_s * (1 + 1e-9)
        assert stage_figures(plan.stage).gap == 0.0


def test_nothing_is_recomputed_that_does_not_compute():
    plan = again(planned(mlp(ROWS, (WIDTH,) * 3)))
    for op in plan.graph.ops:
        rule = find_rule(op.kind)
        assert rule is not None
        if not computes(plan.graph.spec(op), rule):
            assert stage_figures(plan.stage).costs[op.name].compute_s == 0


def test_explain_says_what_it_saves_at_the_fullest_moment():
    graph = attention(8, 8, 64, 128, 4)
    plan = planned(graph, 1, 2, space=data_parallel(graph))
    twice = again(plan)
    before, after = stage_figures(plan.stage).peak_bytes, stage_figures(twice.stage).peak_bytes
    assert before == stage_figures(plan.stage).memory_peak("executor").bytes
    assert before is not None and after is not None and after < before
    text = explain(twice)
    assert f"needs {format_bytes(after)} of" in text
    assert f"at the fullest moment {format_bytes(after)} instead of {format_bytes(before)}" in text
    assert "instead of" not in explain(plan)
