"""The predicted memory of small plans, worked out by hand, and what the limit is held against."""

import dataclasses
import math
import subprocess
import sys

import pytest

from autoddl.cost.memory_rules import rules_of
from autoddl.cost.required import memory_course, required_bytes
from autoddl.planner.baselines import data_parallel, forced
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.stage_figures import StageFigures, stage_figures
from tests.clusters import cluster
from tests.graphs import Builder, attention, mlp, tied
from tests.planned import planned

ROWS, WIDTH, F = 1024, 256, 4  # sizes whose tensors are whole units
ACT = ROWS * WIDTH * F
WEIGHT, BIAS = WIDTH * WIDTH * F, WIDTH * F


def predicted(graph, nodes=1, gpus=1, space=None, **options) -> StageFigures:
    return planned(graph, cluster("gcp_a100", nodes, gpus), space, overlap=False, **options)


def causes(found: StageFigures) -> dict[str, int]:
    return dict(found.memory_peak().by_cause)


def on_two(graph, **options) -> dict[str, int]:
    """Data parallel on two devices, where the order is that of the layers."""
    return causes(predicted(graph, 1, 2, space=data_parallel(graph), **options))


def test_one_layer_on_one_device():
    """Rows pass a matmul, a bias and a ReLU; the sum is the loss."""
    peak = predicted(mlp(ROWS, (WIDTH, WIDTH)), optimizer="sgd").memory_peak()
    assert peak.always == {"parameters": WEIGHT + BIAS, "inputs": ACT}
    # the gradient behind the bias has taken the place of the one behind the ReLU, whose output is
    # gone; to sum it up for the bias takes a workspace of its size
    assert peak.moment == "backward of fc0/add"
    assert peak.by_cause["gradients"] == ACT + BIAS and peak.by_cause["workspace"] == ACT
    assert peak.bytes == sum(peak.by_cause.values())


SLOTS = [("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)]


@pytest.mark.parametrize(("optimizer", "slots"), SLOTS)
def test_the_optimizer_has_slots_of_the_parameters_size(optimizer, slots):
    found = causes(predicted(mlp(ROWS, (WIDTH, WIDTH)), optimizer=optimizer))
    assert found.get("optimizer", 0) == slots * (WEIGHT + BIAS)


def test_relu_keeps_its_output_and_a_sum_nothing():
    """Ten layers deep, what is kept per layer is one activation: ReLU in the place of the sum.

    It is the next product's input and all that its own backward pass reads.
    """

    def activations(layers: int) -> int:
        graph = mlp(2 * ROWS, (WIDTH,) * (layers + 1))
        return on_two(graph, optimizer="sgd")["activations"]

    assert activations(10) - activations(5) == 5 * ACT


def test_softmax_keeps_its_output_and_products_their_inputs():
    """Attention keeps of each layer: its input, heads (for narrow's shape), q, k^T, v, weights,
    the mixed heads in their joined order."""
    batch, length, width, heads = 8, 64, 128, 4

    def activations(layers: int) -> int:
        graph = attention(layers, 2 * batch, length, width, heads)
        return on_two(graph, optimizer="sgd")["activations"]

    rows = batch * length * width * F
    weights = batch * heads * length * length * F
    assert activations(6) - activations(3) == 3 * (rows + 3 * rows + 3 * rows + weights + rows)


def test_data_parallel_splits_activations_and_not_parameters():
    graph = mlp(ROWS, (WIDTH,) * 5)
    two = on_two(graph)
    four = causes(predicted(graph, 2, 2, space=data_parallel(graph)))
    assert four["parameters"] == two["parameters"] and four["optimizer"] == two["optimizer"]
    assert four["inputs"] == two["inputs"] / 2
    assert four["activations"] == pytest.approx(two["activations"] / 2, rel=0.01)


def test_micro_batches_cut_activations_and_accumulate_gradients():
    graph = mlp(ROWS, (WIDTH,) * 9)
    whole = on_two(graph, micro_batches=1)
    parts = on_two(graph, micro_batches=4)
    # nn.Graph keeps the first result of all
    assert parts["activations"] == (whole["activations"] + ACT / 2) / 4
    # each parameter's accumulator is there all the time
    assert parts["gradients"] >= parts["parameters"] > whole["gradients"]


def test_a_tied_weight_is_counted_once():
    found = causes(predicted(tied(ROWS, WIDTH), optimizer="momentum"))
    assert found["parameters"] == found["optimizer"] == WEIGHT


def test_the_executor_keeps_every_gradient_between_micro_batches():
    found = predicted(attention(4, 8, 64, 128, 4), 2, 2, optimizer="adam", micro_batches=2)
    gradients = found.memory_peak("executor").always["gradients"]
    assert gradients == found.memory_peak().always["parameters"]


@pytest.mark.parametrize("layers", [1, 3])
def test_the_executor_synchronises_equal_gradients_one_after_the_other(layers):
    """Small activations: the fullest moment is the sum of one weight's gradient over devices."""
    graph = mlp(8, (WIDTH,) * (layers + 1))
    found = predicted(graph, 1, 2, space=data_parallel(graph), optimizer="sgd")
    peak = found.memory_peak("executor")
    assert " of gradient of " in peak.moment
    assert peak.by_cause["redistribution"] == WEIGHT
    assert peak.by_cause["gradients"] == peak.always["parameters"] == layers * (WEIGHT + BIAS)


def on_one(graph, **options):
    """The executor's fullest moment on one device."""
    return predicted(graph, optimizer="sgd", **options).memory_peak("executor")


def test_the_executor_keeps_what_operators_make_and_views_are_free():
    """Of each layer of attention: q, k and v together, scores, softmax, the joined heads, output.

    Heads that are joined are a copy, and what it is made of is gone then.
    """
    batch, length, width, heads = 8, 64, 128, 4

    def activations(layers: int) -> int:
        return on_one(attention(layers, batch, length, width, heads)).by_cause["activations"]

    rows, weights = batch * length * width * F, batch * heads * length * length * F
    assert activations(6) - activations(3) == 3 * (3 * rows + 2 * weights + rows + rows)


def test_the_executor_sums_up_a_bias_gradient_in_a_workspace():
    """Neither what is added up nor the sum is there any more: the backward pass reads neither."""
    b = Builder(ROWS)
    linear = b.graph(b.linear("fc", b.input(0, (ROWS, WIDTH)), WIDTH), "linear")
    found = predicted(linear, optimizer="sgd")
    course = {m.name: m.by_cause for m in memory_course(found.step, found.model.memory_rules)}
    held = course["backward of fc/add"]
    assert held["workspace"] == ACT and held["gradients"] == ACT + BIAS
    assert "activations" not in held


def test_the_executor_sums_up_the_gradient_of_a_factor_beside_the_product():
    b = Builder(ROWS)
    x = b.op("add", "scalar_add", (b.param("x", (ROWS, WIDTH)),), (ROWS, WIDTH), operand=1.0)
    y = b.op("mul", "broadcast_mul", (x, b.param("factor", (WIDTH,))), (ROWS, WIDTH))
    peak = on_one(b.graph(y, "scaled"))
    assert peak.moment == "backward of mul"
    assert peak.by_cause["activations"] == ACT and peak.by_cause["workspace"] == 2 * ACT
    assert peak.by_cause["gradients"] == 2 * ACT + BIAS


@pytest.mark.parametrize(("kind", "copies"), [("gelu", 1), ("relu", 0)])
def test_a_kernel_that_reads_its_input_backward_keeps_a_copy_of_a_strided_one(kind, copies):
    """Two of these on a transposed tensor, each its output's sum; both outputs are kept."""

    def activations(transposed: bool) -> int:
        b = Builder(ROWS)
        x = b.op("add", "scalar_add", (b.param("x", (ROWS, WIDTH)),), (ROWS, WIDTH), operand=1.0)
        if transposed:
            x = b.op("turned", "transpose", (x,), (WIDTH, ROWS), perm=(1, 0))
        return on_one(b.graph(b.unary(kind, x, kind), kind)).by_cause["activations"]

    assert activations(True) - activations(False) == copies * ACT


def test_a_variance_keeps_nothing_in_the_executor():
    b = Builder(ROWS)
    x = b.op("add", "scalar_add", (b.param("x", (ROWS, WIDTH)),), (ROWS, WIDTH), operand=1.0)
    y = b.op("var", "var", (x,), (ROWS,), dim=(1,), unbiased=True, keepdim=False)
    found = predicted(b.graph(y, "var"), optimizer="sgd")
    peak = found.memory_peak("executor")
    # x less its mean, found again, and the gradient repeated along the rows
    assert peak.moment == "backward of var" and peak.by_cause["workspace"] == 2 * ACT
    assert peak.by_cause["activations"] == ACT + ROWS * F


def test_an_unknown_runtime_is_refused():
    found = predicted(mlp(8, (8, 8)))
    with pytest.raises(ValueError, match="unknown runtime 'gpu'"):
        found.memory_peak("gpu")  # pyright: ignore[reportArgumentType]


def scaled_images(rows: int, channels: int, size: int) -> tuple[Builder, str]:
    b = Builder(rows)
    shape = (rows, channels, size, size)
    scale = b.param("scale", (channels, 1, 1))
    return b, b.op("scaled", "broadcast_mul", (b.input(0, shape), scale), shape)


def test_a_largest_element_is_remembered_by_its_number():
    b, x = scaled_images(64, 16, 32)
    pooled = b.op(
        "pooled", "max_pool_2d", (x,), (64, 16, 16, 16), kernel_size=(2, 2), stride=(2, 2),
        padding=(0, 0), dilation=(1, 1), ceil_mode=False, return_indices=False,
        data_format="channels_first",
    )  # fmt: skip
    peak = predicted(b.graph(pooled, "pool")).memory_peak()
    image = 64 * 16 * 32 * 32 * F
    assert peak.moment == "backward of pooled"
    numbers = image // 4 * 2  # of eight bytes
    assert peak.by_cause["activations"] == image + image // 4 + numbers


def test_the_executor_goes_back_through_a_transposed_convolution_with_a_copy_of_its_input():
    b, x = scaled_images(64, 16, 16)
    weight = b.param("weight", (16, 16, 2, 2))
    up = b.op(
        "up", "deconv2d", (x, weight), (64, 16, 32, 32), kernel_size=(2, 2), strides=(2, 2),
        padding_before=(0, 0), output_padding=(0, 0), dilation_rate=(1, 1), groups=1, filters=16,
        data_format="channels_first",
    )  # fmt: skip
    peak = predicted(b.graph(up, "up")).memory_peak("executor")
    assert peak.moment == "backward of up"
    assert peak.by_cause["workspace"] == 64 * 16 * 16 * 16 * F


def split(letters, nodes=2, gpus=2, **options) -> StageFigures:
    graph, mesh = mlp(ROWS, (1024,) * 4), cluster("gcp_a100", nodes, gpus).mesh
    return predicted(graph, nodes, gpus, forced(graph, mesh, letters), **options)


def needed(found: StageFigures, limit: float = math.inf) -> int:
    return required_bytes(found.step, found.model.memory_rules, limit)


def compiles(found: StageFigures) -> bool:
    return found.model.memory_rules.compiles(found.step)


def test_the_larger_of_both_counts():
    """nn.Graph packs what it sends, and has accumulators beside the gradients."""
    found = split(("S0", "S0"), micro_batches=4, optimizer="sgd")
    executor, graph = (found.memory_peak(runtime).bytes for runtime in ("executor", "graph"))
    assert executor < graph == needed(found)


def test_what_the_executor_cannot_hold_is_not_compiled():
    found = split(("S0", "S0"), micro_batches=4, optimizer="sgd")
    executor = found.memory_peak("executor").bytes
    assert needed(found, limit=executor - 1) == executor


@pytest.mark.parametrize(
    ("letters", "nodes", "gpus", "expected"),
    [(("S0", "S1"), 2, 2, True), (("S0", "B", "S1"), 2, 4, False)],
)
def test_meshes_of_two_axes_compile(letters, nodes, gpus, expected):
    found = split(letters, nodes, gpus)
    assert compiles(found) == expected
    if not expected:
        assert needed(found) == found.memory_peak("executor").bytes


@pytest.mark.parametrize(("nodes", "counts_more"), [(1, False), (2, True)])
def test_where_chains_are_not_known_the_compiled_step_counts_a_little_more(nodes, counts_more):
    """Blocks are run again, micro-batches accumulated, on one axis and on two."""
    found = split(("S0", "S1")[:nodes], nodes, micro_batches=4, checkpointing="all")
    assert found.stage.recomputed and compiles(found)
    peaks = [found.memory_peak(runtime).bytes for runtime in ("executor", "graph")]
    assert (needed(found) > max(peaks)) == counts_more


def test_an_unknown_back_end_is_refused():
    told = "unknown back end 'abacus'; autoddl comes with 'oneflow'"
    with pytest.raises(ValueError, match=told):
        rules_of("abacus")
    stage = split(("S0", "S0")).stage
    assert stage.back_end == "oneflow" == Plan.on_one_mesh(stage).to_json()["back_end"]
    with pytest.raises(ValueError, match=told):
        stage_figures(dataclasses.replace(stage, back_end="abacus")).memory_peak()


def test_the_rules_of_oneflow_need_no_oneflow():
    """Plans are also made where it is not installed."""
    code = "import sys; sys.modules['oneflow'] = None\n"
    code += "from autoddl.cost.memory_rules import rules_of; assert rules_of('oneflow').operators"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_with_all_micro_batches_in_flight_no_sums_are_there_yet():
    """The first backward pass finds all of them, as where more follow, but no gradients of weights.

    A stage of GPipe, four layers and their ReLUs, whose weights are small beside activations.
    """
    options = PlanOptions(stages=2, schedule="gpipe", micro_batches=4)
    first = find_plan(mlp(4 * ROWS, (WIDTH,) * 9), cluster("gcp_a100", 2, 1), options).stages[0]
    peak = stage_figures(first).memory_peak("executor")
    assert peak.by_cause["in flight"] == 3 * 8 * ACT
    assert peak.by_cause["gradients"] == 2 * ACT
    more = stage_figures(dataclasses.replace(first, micro_batches=5)).memory_peak("executor")
    assert more.bytes - peak.bytes == ACT + 4 * (WEIGHT + BIAS)  # the inputs of one more, and sums


def test_sums_of_gradients_count_where_they_outweigh_a_micro_batch():
    """Weights that are large beside activations: the second backward pass is the fullest."""
    options = PlanOptions(stages=2, schedule="gpipe", micro_batches=4)
    first = find_plan(mlp(16, (WIDTH,) * 9), cluster("gcp_a100", 2, 1), options).stages[0]
    peak = stage_figures(first).memory_peak("executor")
    assert peak.by_cause["gradients"] > 4 * (WEIGHT + BIAS)
    assert peak.by_cause["in flight"] == 2 * 8 * (4 * WIDTH * F)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_bucket_takes_the_place_of_its_gradients_beside_what_comes_back(parts: int):
    graph = mlp(2 * ROWS, (WIDTH, WIDTH, WIDTH))
    found = predicted(graph, 1, 2, space=data_parallel(graph), micro_batches=parts)
    count = len(found.stage.exchanges)
    assert count == 4 and len({e.company for e in found.stage.exchanges}) == 1

    def last_bytes(*buckets: tuple[int, ...]) -> int:
        stage = dataclasses.replace(found.stage, buckets=buckets)
        return stage_figures(stage).memory_course[-1].bytes

    # after the last pass: the gradients, and what one of them becomes, or all of them, and a copy
    # that the collective is given
    serial, bucketed = last_bytes(), last_bytes(tuple(range(count)))
    assert bucketed - serial == 2 * (2 * (WEIGHT + BIAS) - WEIGHT)
    # each by itself has come back by then, but for the last one, a weight
    assert last_bytes(*((n,) for n in reversed(range(count)))) == serial


def test_of_two_in_turns_the_first_ones_gradients_become_the_sums():
    """Six layers, data parallel on two devices, in turns of two: sums are there with the second."""
    options = PlanOptions(overlap=True, baselines=False, in_flight=2, micro_batches=2)
    graph = mlp(4 * ROWS, (WIDTH,) * 7)
    where, space = cluster("laptop", 2, 1), data_parallel(graph)
    stage = find_plan(graph, where, options, space=space).stage
    assert stage.turns and stage.buckets
    peak = stage_figures(stage).memory_peak("executor")
    assert peak.by_cause["gradients"] == 2 * ACT
    more = stage_figures(dataclasses.replace(stage, micro_batches=4)).memory_peak("executor")
    sums = sum(stage.graph.tensors[op.outputs[0]].spec.bytes for op in stage.graph.params)
    assert more.bytes - peak.bytes == 2 * ACT + sums
