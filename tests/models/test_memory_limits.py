"""The memory limits of AutoDDL's experiments come out of the model (sections 5.2 and 5.3)."""

from functools import lru_cache

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


@lru_cache(maxsize=1)
def gpt(size: str) -> Graph:
    return trace_entry(f"models.gpt:gpt_{size}")


def test_data_parallel_gpt_of_6_8_billion_does_not_fit_a_p100():
    graph = gpt("6_8b")
    with pytest.raises(ValueError, match="no plan fits the memory limit of 16 GB"):
        find_plan(graph, cluster("piz_daint", 64, 1), space=data_parallel(graph))


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
    assert not any(edge.zero_stage for edge in plan.edges.values())
    return plan.memory_peak().bytes


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("size", "nodes", "least"), [("6_8b", 64, 16), ("16b", 128, 32), ("36b", 256, 64)]
)
def test_weights_spread_over_the_groups_of_the_paper(size, nodes, least):
    """Section 5.2: Megatron's weights over at least 16, 32, 64 of 64, 128, 256 nodes."""
    graph = gpt(size)
    for spread in (least // 4, least // 2):
        assert megatron_bytes(graph, nodes, spread) > P100, spread
    for spread in (least, 2 * least):
        assert megatron_bytes(graph, nodes, spread) <= P100, spread


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("size", "nodes", "least"), [("6_8b", 64, 16), ("16b", 128, 32), ("36b", 256, 64)]
)
def test_the_searched_plan_spreads_its_weights_as_far(size, nodes, least):
    """Without ZeRO, as in the paper; the plan keeps to the limit at its fullest moment."""
    graph = gpt(size)
    plan = find_plan(graph, cluster("piz_daint", nodes, 1), zero=False, baselines=False)
    assert plan.memory_peak("executor").bytes <= P100
    whole = apart = 0.0
    for op in plan.graph.params:
        spec, nd = plan.graph.tensors[op.outputs[0]].spec, plan.ops[op.name].outs[0]
        whole += spec.bytes
        apart += spec.bytes / plan.mesh.extent(a for a, p in enumerate(nd) if p.is_split)
    assert whole / apart >= least


def test_gpt_of_0_35_billion_fits_one_a100():
    graph = trace_entry("models.gpt:gpt_0_35b")
    plan = find_plan(graph, cluster("gcp_a100", 2, 16), space=data_parallel(graph))
    parameters = 4 * sum(graph.tensors[op.outputs[0]].spec.numel for op in graph.params)
    assert plan.memory_peak().always["parameters"] >= parameters  # each device has them all
    assert plan.memory_peak().bytes <= A100
    assert plan.memory_peak("executor").bytes <= A100
