"""Plans of the paper's models on the paper's machine, traced without their memory.

In AutoDDL's own space, which has no ZeRO.
"""

import re

import pytest

from autoddl.plans.figures import figures

pytest.importorskip("oneflow", reason="traces OneFlow models")

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan  # noqa: E402
from autoddl.runtime.oneflow.trace.entries import trace_entry  # noqa: E402
from benchmarks.memory import graph_of  # noqa: E402
from tests.clusters import cluster  # noqa: E402


@pytest.mark.parametrize("nodes", [16, 32])
def test_vgg_has_data_parallel_convolutions_and_2d_dense_layers(nodes):
    """AutoDDL section 4.5, batch 8 a node: dense weights are not replicated.

    Of serial steps, as the paper's: with overlap it pays to replicate some of them.
    """
    graph = trace_entry("vgg13", 8 * nodes)
    options = PlanOptions(zero=False, overlap=False)
    plan = find_plan(graph, cluster("piz_daint", nodes, 1), options)
    kinds = {"conv2d": 0, "matmul": 0}
    for layer in plan.layers:
        kinds[layer.op] += 1
        if layer.op == "conv2d":
            assert layer.topology == f"(S0:({nodes},1), B:(1,1), S1:(1,1))", layer
        else:
            assert layer.topology.startswith("(S0:(1,1), B:("), layer
            assert "R:" not in layer.topology
            assert "(1,1)" not in layer.topology.split("B:")[1], "2D: columns and summed dim"
    assert kinds == {"conv2d": 10, "matmul": 3}


@pytest.mark.full
def test_a_gpt_of_sixteen_billion_parameters_fits_128_nodes_of_piz_daint():
    """AutoDDL section 5.2; data parallel would need every parameter on every 16 GB device."""
    graph = trace_entry("gpt_16b")
    plan = find_plan(
        graph, cluster("piz_daint", 128, 1), PlanOptions(micro_batches=256, zero=False)
    )
    assert figures(plan).cost.memory_bytes <= 16e9
    assert 4 * sum(graph.tensors[op.outputs[0]].spec.numel for op in graph.params) > 16e9
    tops = {layer.topology for layer in plan.layers if layer.name.endswith(".mlp.fc1")}
    assert all("R:" not in topology for topology in tops)


@pytest.mark.full
@pytest.mark.parametrize("limit", [470e6, 491.422e6])
def test_where_nothing_is_small_enough_for_a_whole_step_down_there_is_something_in_between(limit):
    """A limit lowered by the whole excess of the best plan by sums admits nothing.

    Within the higher limit there is a plan of four micro-batches, much slower than a look says.
    """
    graph, where = graph_of("dlrm 8x100k"), cluster("gcp_a100", 2, 2)
    plan, eight = (
        find_plan(
            graph,
            where,
            PlanOptions(memory_limit_bytes=limit, micro_batches=parts, baselines=False),
        )
        for parts in (None, 8)
    )
    assert figures(plan).cost.iteration_s <= figures(eight).cost.iteration_s * (1 + 1e-9)
    assert max(figures(plan).needed_bytes) <= limit


@pytest.mark.full
def test_the_smallest_plan_that_a_refusal_names_is_found_in_so_much_memory():
    """It was Megatron's, which needed less than what a sweep over prices of memory found."""
    graph, where = trace_entry("gpt_small"), cluster("gcp_a100", 2, 2)
    with pytest.raises(ValueError) as error:
        find_plan(graph, where, PlanOptions(memory_limit_bytes=1.0))
    found = re.search(r"smallest found needs (\d+) kB", str(error.value))
    assert found is not None, error.value
    smallest = 1e3 * float(found[1])
    plan = find_plan(graph, where, PlanOptions(memory_limit_bytes=smallest))
    assert max(figures(plan).needed_bytes) <= smallest
    with pytest.raises(ValueError, match=found[0]):
        find_plan(graph, where, PlanOptions(memory_limit_bytes=0.95 * smallest))
