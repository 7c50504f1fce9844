import dataclasses

import pytest

from autoddl.cost.model import parameter_copies
from autoddl.planner.baselines import data_parallel
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import attention, mlp, tied
from tests.planned import planned

BATCH, WIDTHS = 64, (256, 512, 128)
PARAMETERS = 256 * 512 + 512 + 512 * 128 + 128


def cost(nodes=2, gpus=2, **options):
    graph = mlp(BATCH, WIDTHS)
    return planned(graph, cluster("piz_daint", nodes, gpus), data_parallel(graph), **options).cost


def test_data_parallel_moves_twice_the_gradients_and_the_loss():
    """All-reduces over 2 hosts x 2 devices: 2 (p-1)/p n through each NIC, p = 4, G/g = 1."""
    found = cost()
    assert found.nic_bytes.gradient_sync <= 2 * 3 / 4 * PARAMETERS * 4
    assert found.nic_bytes.gradient_sync >= 2 * 1 / 2 * PARAMETERS * 4  # hosts only, after devices
    assert 0 < found.nic_bytes.forward <= 16  # the loss
    assert found.nic_bytes.backward == 0


def test_gradients_are_synchronised_once_however_many_micro_batches():
    one, four = (cost(micro_batches=parts).nic_bytes for parts in (1, 4))
    assert four.gradient_sync == one.gradient_sync
    assert four.forward == 4 * one.forward


def test_memory_is_parameters_state_and_activations():
    costs = {o: cost(1, 1, optimizer=o).memory_bytes for o in ("sgd", "momentum", "adam")}
    for optimizer, memory in costs.items():
        outputs = 4 * BATCH * 2 * (512 + 128)  # sum with the bias, ReLU; no gradient reads products
        data = 4 * BATCH * 256
        assert memory == pytest.approx(
            4 * PARAMETERS * parameter_copies(optimizer) + outputs + data + 4
        )
    halved = cost(1, 1, micro_batches=2).memory_bytes
    # of the last product's input and weight, while the accumulated ones are there; that of its
    # output comes where its reader's output was
    gradients = 4 * (BATCH / 2 * 512 + 512 * 128)
    saved = 4 * BATCH * 2 * 640 / 2  # but the whole batch's data stays
    assert costs["adam"] - halved == pytest.approx(saved - gradients)


def test_compute_follows_the_device():
    slow, fast = cluster("piz_daint", 1, 1), cluster("piz_daint", 1, 1)
    device = fast.device
    rates = {dtype: 2 * rate for dtype, rate in device.flops_per_s.items()}
    bandwidth = 2 * device.memory_bandwidth_bytes_per_s
    doubled = dataclasses.replace(
        device, flops_per_s=rates, memory_bandwidth_bytes_per_s=bandwidth, launch_s=0.0
    )
    slow = dataclasses.replace(slow, device=dataclasses.replace(device, launch_s=0.0))
    fast = dataclasses.replace(fast, device=doubled)
    graph = mlp(4096, (1024, 1024))
    before, after = (planned(graph, where).cost.compute_s for where in (slow, fast))
    assert before == pytest.approx(2 * after)
    flops = 3 * 2 * 4096 * 1024 * 1024
    assert before >= flops / slow.device.flops_for("float32")


def test_a_tied_weight_and_its_gradient_are_kept_once():
    where = cluster("piz_daint", 1, 1)
    found, weight_bytes = planned(tied(64, 256), where, optimizer="sgd"), 256 * 256 * 4
    assert found.cost.memory_bytes < 3.5 * weight_bytes + 64 * 256 * 4 * 4
    (weight,) = found.stage.graph.params
    assert found.costs[weight.name].memory_bytes == 2 * weight_bytes


def test_unknown_optimizer_names_the_known():
    with pytest.raises(ValueError, match="momentum"):
        parameter_copies("lion")


def test_equal_operators_have_the_account_that_each_of_them_has_by_itself():
    """Which are equal is told by the objects; each has its own here, as in a plan from a file."""
    graph, where = attention(2, 32, 16, 64, 4), cluster("gcp_a100", 2, 2)
    options = PlanOptions(baselines=False, micro_batches=4, checkpointing="all")
    stage = find_plan(graph, where, options).stage
    ops = {name: dataclasses.replace(placed) for name, placed in stage.ops.items()}
    apart = dataclasses.replace(stage, ops=ops)
    shared, alone = stage_figures(stage).costs, stage_figures(apart).costs
    assert len({*map(id, shared.values())}) < len({*map(id, alone.values())}) == len(alone)
    assert shared == alone
