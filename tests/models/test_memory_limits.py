"""The memory limits of AutoDDL's experiments come out of the model (sections 5.2 and 5.3)."""

import pytest

pytest.importorskip("oneflow", reason="traces OneFlow models")

from autoddl.backend.oneflow.entries import trace_entry  # noqa: E402
from autoddl.baselines import data_parallel, megatron  # noqa: E402
from autoddl.graph import Graph  # noqa: E402
from autoddl.planner import find_plan  # noqa: E402
from tests.clusters import cluster  # noqa: E402

pytestmark = pytest.mark.full
P100, A100 = 16e9, 40e9
ANY = 1e15


@pytest.fixture(scope="module")
def gpt_6_8b() -> Graph:
    return trace_entry("models.gpt:gpt_6_8b")


def test_data_parallel_gpt_of_6_8_billion_does_not_fit_a_p100(gpt_6_8b):
    with pytest.raises(ValueError, match="no plan fits the memory limit of 16 GB"):
        find_plan(gpt_6_8b, cluster("piz_daint", 64, 1), space=data_parallel(gpt_6_8b))


def megatron_bytes(graph: Graph, nodes: int, spread: int) -> int:
    """The peak with weights over `spread` nodes, a sequence per group at a time."""
    groups = nodes // spread
    data_axes = range(groups.bit_length() - 1)
    plan = find_plan(
        graph,
        cluster("piz_daint", nodes, 1),
        space=megatron(graph, data_axes),
        micro_batches=graph.batch // groups,
        memory_limit_bytes=ANY,
    )
    return plan.memory_peak().bytes


@pytest.mark.parametrize(("spread", "fits"), [(4, False), (8, False), (16, True), (64, True)])
def test_weights_spread_over_sixteen_of_64_nodes(gpt_6_8b, spread, fits):
    """The least group of the paper's Megatron and SUMMA topologies for this model is 16."""
    assert (megatron_bytes(gpt_6_8b, 64, spread) <= P100) == fits


def test_gpt_of_0_35_billion_fits_one_a100():
    graph = trace_entry("models.gpt:gpt_0_35b")
    plan = find_plan(graph, cluster("gcp_a100", 2, 16), space=data_parallel(graph))
    parameters = 4 * sum(graph.tensors[op.outputs[0]].spec.numel for op in graph.params)
    assert plan.memory_peak().always["parameters"] >= parameters  # each device has them all
    assert plan.memory_peak().bytes <= A100
    assert plan.memory_peak("executor").bytes <= A100
