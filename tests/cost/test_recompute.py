"""What blocks that run forward again cost and save."""

import dataclasses

import pytest

from autoddl import explain
from autoddl.cost.operators import computes
from autoddl.cost.recompute import Recomputation
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel, forced
from autoddl.plans import Plan
from autoddl.plans.format import format_bytes
from autoddl.plans.stage_figures import StageFigures, stage_figures
from autoddl.sbp.signature import find_rule
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual
from tests.planned import planned

ROWS, WIDTH, LAYERS = 1024, 256, 6
ACT = ROWS * WIDTH * 4


def keeping(graph, gpus=1, space=None):
    where = cluster("gcp_a100", 1, gpus)
    return planned(graph, where, space, checkpointing="none", overlap=False)


def again(found: StageFigures) -> StageFigures:
    """The same plan, all its repeated blocks run forward again."""
    blocks = repeated_blocks(found.stage.graph)
    return stage_figures(dataclasses.replace(found.stage, recomputed=blocks))


def test_what_leaves_a_block_is_kept_and_of_the_rest_one_block():
    """A layer makes a product, a sum and a ReLU; only the ReLU leaves it.

    No gradient reads the product, which counts where blocks are run again alone.
    """
    graph = mlp(ROWS, (WIDTH,) * (LAYERS + 1))
    found = keeping(graph)
    less = again(found).cost.memory_bytes
    saved = found.cost.memory_bytes - less
    loss = 4  # comes after the blocks
    # of one block's product: output, weight, and input, which the first block's has none of
    gradients = ACT + 4 * WIDTH * WIDTH + ACT * (LAYERS - 1) / LAYERS
    # the sums of the others, and of the last one, which is gone then; but one product
    assert saved == pytest.approx((LAYERS - 1) * ACT + ACT - ACT + loss - gradients)
    searched = planned(graph, found.stage.cluster, checkpointing="all", baselines=False)
    assert searched.cost.memory_bytes == pytest.approx(less)


def test_a_view_that_leaves_a_block_keeps_what_it_shows():
    graph = residual(3, 8, 8).with_forks()
    blocks = repeated_blocks(graph)
    assert blocks[0][-1].endswith(".fork")
    assert blocks[0][-2] in Recomputation(graph, blocks).leaving


def test_computation_is_that_of_three_passes_instead_of_two():
    device = dataclasses.replace(cluster("gcp_a100", 1, 1).device, launch_s=0.0)
    where = dataclasses.replace(cluster("gcp_a100", 1, 1), device=device)
    found = planned(mlp(ROWS, (4096,) * 3), where, checkpointing="none")
    twice = again(found)
    for op in found.stage.graph.ops:
        if op.kind == "matmul":
            before, after = (f.costs[op.name].compute_s for f in (found, twice))
            assert after == pytest.approx(before * 4 / 3)


def test_forward_redistributions_are_paid_twice_and_gradients_once():
    graph = attention(3, 8, 64, 128, 4)
    found = keeping(graph, 4, forced(graph, cluster("gcp_a100", 1, 4).mesh, ["B", "S1"]))
    inside = {name for block in repeated_blocks(found.stage.graph) for name in block}
    twice = again(found)
    for op in found.stage.graph.ops:
        before, after = (f.costs[op.name].intra_bytes for f in (found, twice))
        assert after.forward == before.forward * (2 if op.name in inside else 1)
        assert (after.backward, after.gradient_sync) == (before.backward, before.gradient_sync)
    assert twice.cost.intra_bytes.forward > found.cost.intra_bytes.forward


@pytest.mark.parametrize("runtime", ["graph", "executor"])
def test_the_fullest_moment_has_one_block(runtime):
    """Twice as many layers add their inputs to it, and nothing else.

    The executor's is in the first layer's backward pass, when the inputs of the others are gone and
    all parameters' gradients are there.
    """

    def activations(layers):
        graph = attention(layers, 8, 64, 128, 4)
        peak = again(keeping(graph, 2, data_parallel(graph))).memory_peak(runtime)
        return peak.by_cause["activations"] + peak.by_cause.get("gradients", 0)

    rows = 4 * 64 * 128 * 4
    parameters = 4 * 128 * 128 * 4
    assert activations(8) - activations(4) == 4 * (parameters if runtime == "executor" else rows)


def test_search_tables_agree_with_the_account():
    graph = attention(4, 8, 64, 128, 4)
    where = cluster("piz_daint", 4, 1)
    for parts in (1, 2):
        options = {"micro_batches": parts, "checkpointing": "all", "baselines": False}
        found = planned(graph, where, overlap=False, **options)
        bound = found.stage.search.lower_bound_s
        assert found.stage.recomputed and bound is not None
        assert bound <= found.cost.iteration_s * (1 + 1e-9)
        assert found.gap == 0.0


def test_nothing_is_recomputed_that_does_not_compute():
    found = again(keeping(mlp(ROWS, (WIDTH,) * 3)))
    for op in found.stage.graph.ops:
        rule = find_rule(op.kind)
        assert rule is not None
        if not computes(found.stage.graph.spec(op), rule):
            assert found.costs[op.name].compute_s == 0


def test_explain_says_what_it_saves_at_the_fullest_moment():
    graph = attention(8, 8, 64, 128, 4)
    found = keeping(graph, 2, data_parallel(graph))
    twice = again(found)
    before, after = found.peak_bytes, twice.peak_bytes
    assert before == found.memory_peak("executor").bytes
    assert before is not None and after is not None and after < before
    text = explain(Plan.on_one_mesh(twice.stage))
    assert f"needs {format_bytes(after)} of" in text
    assert f"at the fullest moment {format_bytes(after)} instead of {format_bytes(before)}" in text
    assert "instead of" not in explain(Plan.on_one_mesh(found.stage))
