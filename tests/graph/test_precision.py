"""Plans in mixed precision: bytes and seconds follow the dtype, and the file keeps it."""

import dataclasses

import pytest

from autoddl import explain
from autoddl.graph.precision import in_precision
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp

ROWS, WIDTH = 1024, 256
GRAPH = mlp(ROWS, (WIDTH,) * 4)
PARAMETERS = 3 * (WIDTH * WIDTH + WIDTH)
WHERE = cluster("gcp_a100", 1, 1)


def plan(precision, where=WHERE, graph=GRAPH, space=None, **options) -> Plan:
    return find_plan(
        graph, where, PlanOptions(precision=precision, checkpointing="none", **options), space=space
    )


def test_parameters_and_activations_are_halved_and_the_loss_is_not():
    half = in_precision(GRAPH, "float16")
    half.verify()
    dtypes = {name: t.spec.dtype for name, t in half.tensors.items()}
    assert dtypes["fc0.weight"] == dtypes["relu2"] == "float16"
    assert dtypes["input.0"] == dtypes["sum"] == dtypes[half.loss] == "float32"
    casts = [(op.inputs[0], op.outputs[0]) for op in half.ops if op.kind == "cast"]
    assert casts == [("input.0", "input.0.float16"), ("relu2", "relu2.float32")]
    assert in_precision(GRAPH, "float32") is GRAPH


@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_state_is_in_float32_with_a_master_copy(optimizer, slots):
    found = stage_figures(plan("float16", optimizer=optimizer).stage).memory_peak()
    assert found.always["parameters"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert found.always["optimizer"] == pytest.approx(4 * (1 + slots) * PARAMETERS, rel=0.01)
    halved, whole = (
        stage_figures(plan(p, optimizer=optimizer).stage).costs for p in ("float16", "float32")
    )
    weight = WIDTH * WIDTH
    assert halved["fc0.weight"].memory_bytes == weight * (2 + 2 + 4 * (1 + slots))
    assert whole["fc0.weight"].memory_bytes == weight * (4 + 4 + 4 * slots)


def test_gradients_travel_in_float16():
    where = cluster("gcp_a100", 2, 1)
    halved, whole = (
        figures(plan(p, where, space=data_parallel(in_precision(GRAPH, p)))).cost.nic_bytes
        for p in ("float16", "float32")
    )
    assert halved.gradient_sync == whole.gradient_sync / 2


def test_products_run_at_the_rate_of_float16():
    device = dataclasses.replace(WHERE.device, launch_s=0.0, memory_bandwidth_bytes_per_s=1e18)
    where = dataclasses.replace(WHERE, device=device)
    graph = mlp(4096, (1024, 1024))
    seconds = [
        stage_figures(plan(p, where, graph).stage).costs["fc0/matmul"].compute_s
        for p in ("float32", "float16")
    ]
    rates = device.flops_per_s
    assert seconds[0] / seconds[1] == pytest.approx(rates["float16"] / rates["float32"])


def test_with_recomputation_and_micro_batches():
    graph = attention(4, 8, 64, 128, 4)
    found = find_plan(
        graph,
        cluster("gcp_a100", 1, 2),
        PlanOptions(precision="float16", micro_batches=2, checkpointing="all"),
    )
    assert (
        found.recomputed
        and figures(found).cost.memory_bytes < figures(found.keeping_all()).cost.memory_bytes
    )


def test_a_source_that_all_blocks_read_is_cast_before_them():
    """The same mask in each block: a cast in the first one would make it unlike the others."""
    b = Builder(ROWS)
    x = b.input(0, (ROWS, WIDTH))
    mask = b.op("mask", "buffer", (), (WIDTH,), name="mask")
    for layer in range(3):
        x = b.linear(f"fc{layer}", x, WIDTH, bias=False)
        x = b.op(f"fc{layer}/mul", "broadcast_mul", (x, mask), (ROWS, WIDTH))
    half = in_precision(b.graph(x, "masked"), "float16").with_forks()
    half.verify()
    assert [len(block) for block in repeated_blocks(half)] == [2, 2, 2]


def test_the_file_keeps_the_precision_and_the_model_is_the_traced_one():
    found = Plan.loads(plan("float16").dumps())
    assert found.precision == "float16" and figures(found).cost == figures(plan("float16")).cost
    found.check_model(GRAPH)
    assert "float16 with float32 master weights" in explain(found)
    with pytest.raises(ValueError, match="another model"):
        found.check_model(mlp(ROWS, (WIDTH,) * 3))


def test_wrong_precisions():
    with pytest.raises(ValueError, match="unknown precision 'int8'"):
        plan("int8")
    slow = dataclasses.replace(WHERE.device, flops_per_s={"float32": 1e12})
    with pytest.raises(ValueError, match="no float16 rate"):
        plan("float16", dataclasses.replace(WHERE, device=slow))
