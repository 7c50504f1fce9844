"""Plans in mixed precision: bytes and seconds follow the dtype, and the file keeps it."""

import dataclasses

import pytest

from autoddl import explain
from autoddl.graph.precision import in_precision
from autoddl.graph.regions import repeated_blocks
from autoddl.planner.baselines import data_parallel
from autoddl.plans import Plan
from autoddl.plans.stage_figures import StageFigures, stage_figures
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp
from tests.planned import planned

ROWS, WIDTH = 1024, 256
GRAPH = mlp(ROWS, (WIDTH,) * 4)
PARAMETERS = 3 * (WIDTH * WIDTH + WIDTH)
WHERE = cluster("gcp_a100", 1, 1)
HALVES = pytest.mark.parametrize("precision", ["float16", "bfloat16"])


def found(precision, where=WHERE, graph=GRAPH, space=None, **options) -> StageFigures:
    return planned(graph, where, space, precision=precision, checkpointing="none", **options)


@HALVES
def test_parameters_and_activations_are_halved_and_the_loss_is_not(precision):
    half = in_precision(GRAPH, precision)
    half.verify()
    dtypes = {name: t.spec.dtype for name, t in half.tensors.items()}
    assert dtypes["fc0.weight"] == dtypes["relu2"] == precision
    assert dtypes["input.0"] == dtypes["sum"] == dtypes[half.loss] == "float32"
    casts = [(op.inputs[0], op.outputs[0]) for op in half.ops if op.kind == "cast"]
    assert casts == [("input.0", f"input.0.{precision}"), ("relu2", "relu2.float32")]
    assert in_precision(GRAPH, "float32") is GRAPH


@HALVES
@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_state_is_in_float32_with_a_master_copy(optimizer, slots, precision):
    always = found(precision, optimizer=optimizer).memory_peak().always
    assert always["parameters"] == pytest.approx(2 * PARAMETERS, rel=0.01)
    assert always["optimizer"] == pytest.approx(4 * (1 + slots) * PARAMETERS, rel=0.01)
    halved, whole = (found(p, optimizer=optimizer).costs for p in (precision, "float32"))
    weight = WIDTH * WIDTH
    assert halved["fc0.weight"].memory_bytes == weight * (2 + 2 + 4 * (1 + slots))
    assert whole["fc0.weight"].memory_bytes == weight * (4 + 4 + 4 * slots)


@HALVES
def test_gradients_travel_in_half_precision(precision):
    where = cluster("gcp_a100", 2, 1)
    halved, whole = (
        found(p, where, space=data_parallel(in_precision(GRAPH, p))).cost.nic_bytes
        for p in (precision, "float32")
    )
    assert halved.gradient_sync == whole.gradient_sync / 2


@HALVES
def test_norms_keep_their_parameters_in_float32(precision):
    """A scale that something else reads as well is cast."""
    b = Builder(ROWS)
    x = b.linear("fc", b.input(0, (ROWS, WIDTH)), WIDTH)
    own = [b.param(f"norm.{name}", (WIDTH,)) for name in ("weight", "bias")]
    attrs = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}
    y = b.op("norm", "layer_norm", (x, *own), (ROWS, WIDTH), **attrs)
    y = b.op("scaled", "broadcast_mul", (y, own[0]), (ROWS, WIDTH))
    half = in_precision(b.graph(y, "normed"), precision)
    (norm,) = (op for op in half.ops if op.kind == "layer_norm")
    assert [half.tensors[name].spec.dtype for name in norm.inputs] == [precision, *["float32"] * 2]
    assert norm.inputs == (x, f"{own[0]}.float32", own[1])
    assert half.tensors["norm"].spec.dtype == precision


@HALVES
def test_products_run_at_the_rate_of_their_precision(precision):
    rates = {**WHERE.device.flops_per_s, "bfloat16": 1.25e14}
    device = dataclasses.replace(
        WHERE.device, flops_per_s=rates, launch_s=0.0, memory_bandwidth_bytes_per_s=1e18
    )
    where = dataclasses.replace(WHERE, device=device)
    graph = mlp(4096, (1024, 1024))
    both = (found(p, where, graph) for p in ("float32", precision))
    seconds = [one.costs["fc0/matmul"].compute_s for one in both]
    assert seconds[0] / seconds[1] == pytest.approx(rates[precision] / rates["float32"])


def test_with_recomputation_and_micro_batches():
    graph = attention(4, 8, 64, 128, 4)
    options = {"precision": "float16", "micro_batches": 2, "checkpointing": "all"}
    again = planned(graph, cluster("gcp_a100", 1, 2), **options)
    kept = stage_figures(dataclasses.replace(again.stage, recomputed=()))
    assert again.stage.recomputed and again.cost.memory_bytes < kept.cost.memory_bytes


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


@HALVES
def test_the_file_keeps_the_precision_and_the_model_is_the_traced_one(precision):
    half = found(precision)
    plan = Plan.loads(Plan.on_one_mesh(half.stage).dumps())
    assert plan.precision == precision and stage_figures(plan.stage).cost == half.cost
    plan.check_model(GRAPH)
    assert f"{precision} with float32 master weights" in explain(plan)
    with pytest.raises(ValueError, match="another model"):
        plan.check_model(mlp(ROWS, (WIDTH,) * 3))


def test_wrong_precisions():
    with pytest.raises(ValueError, match="unknown precision 'int8'"):
        found("int8")
    slow = dataclasses.replace(WHERE.device, flops_per_s={"float32": 1e12})
    for precision in ("float16", "bfloat16"):
        with pytest.raises(ValueError, match=f"no {precision} rate"):
            found(precision, dataclasses.replace(WHERE, device=slow))
