import dataclasses
from collections.abc import Callable

import pytest

from autoddl.graph.graph import Graph
from autoddl.planner.asked import micro_batch_counts
from autoddl.planner.baselines import megatron
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import Space
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import StageFigures
from tests.clusters import cluster
from tests.graphs import alike, attention, gated, mlp, residual, tied
from tests.planned import planned

WIDE = mlp(512, (1024, 4096, 4096, 1024))


def test_the_account_of_the_plan_is_what_the_search_minimised():
    """The prices of the tables and those of the written steps are one."""
    wide, deep = residual(3, 64, 256), attention(2, 8, 16, 64, 4)
    for graph in (WIDE, wide, tied(64, 256), deep, gated(64, 256), alike(64, 256)):
        for nodes, gpus in ((1, 1), (2, 2), (2, 4), (3, 2), (16, 1)):
            options = PlanOptions(seed=1, baselines=False, overlap=False)
            plan = find_plan(graph, cluster("piz_daint", nodes, gpus), options)
            bound = plan.stage.search.lower_bound_s
            assert figures(plan).cost.iteration_s == pytest.approx(bound, rel=3e-6)
            plan.verify()


def test_random_plans_cost_what_their_account_says_and_no_less_than_the_best():
    where = cluster("gcp_a100", 2, 2)
    best = planned(WIDE, where, overlap=False).cost.iteration_s
    costs = set()
    for seed in range(10):
        options = PlanOptions(
            search="random", restarts=1, seed=seed, baselines=False, overlap=False
        )
        plan = find_plan(WIDE, where, options)
        plan.verify()
        costs.add(round(figures(plan).cost.iteration_s, 12))
        assert figures(plan).cost.iteration_s >= best * (1 - 1e-6)
    assert len(costs) > 5


def test_what_only_compares_a_tensor_gives_it_no_gradient():
    for shape in ((2, 2), (4, 8)):
        plan = find_plan(gated(64, 256), cluster("gcp_a100", *shape), PlanOptions(baselines=False))
        ops = plan.stage.ops
        assert ops["above"].grad_ins == ops["twice"].grad_ins == (None,)
        assert ops["gated"].grad_ins[0] is not None
        assert ops["gated"].grad_ins[1] is None
        plan.verify()


def test_same_inputs_and_seed_same_bytes():
    where = cluster("piz_daint", 4, 2)
    for search, plain in (("auto", False), ("coordinate_descent", True), ("random", True)):
        options = PlanOptions(seed=3, search=search, baselines=not plain, overlap=not plain)
        first, second = (find_plan(WIDE, where, options) for _ in range(2))
        assert first.dumps() == second.dumps()


def test_one_device_needs_no_communication():
    found = planned(WIDE, cluster("piz_daint", 1, 1))
    assert found.cost.communication_s == 0 and found.cost.nic_bytes.total == 0
    assert not any(edge.forward or edge.backward for edge in found.stage.edges.values())


def test_coordinate_descent_is_near_the_exact_optimum():
    for graph in (WIDE, residual(4, 64, 512), attention(2, 8, 64, 256, 4)):
        where = cluster("piz_daint", 16, 1)
        exact, found = (
            planned(graph, where, search=search, overlap=False)
            for search in ("auto", "coordinate_descent")
        )
        assert found.cost.iteration_s <= exact.cost.iteration_s * 1.06


def attention_plan(space_of: Callable[[Graph], Space]) -> StageFigures:
    """Four layers of width 8192 on 1024 x 1024 tokens and 64 nodes; the ends may differ."""
    graph, where = attention(4, 1024, 1024, 8192, 64), cluster("piz_daint", 64, 1)
    return planned(graph, where, space_of(graph), micro_batches=1, memory_limit_bytes=1e15)


def gibi_elements(found: StageFigures, layer: str) -> float:
    """Activations through a node's link in the forward pass of `layer`."""
    costs = (cost for op, cost in found.costs.items() if op.startswith(layer))
    return sum(cost.nic_bytes.forward for cost in costs) / 4 / 2**30


def test_attention_moves_two_gibi_elements():
    """AutoDDL Fig. 3, weights over at least 16 devices."""
    plan = attention_plan(lambda _: Space(min_weight_shards=16))
    assert gibi_elements(plan, "layer2") == pytest.approx(2.0, rel=1e-6)
    topologies = {layer.name: layer.topology for layer in plan.stage.layers}
    assert topologies["layer2.qkv"] == "(S0:(4,1), B:(8,1), S1:(2,1))"
    assert topologies["layer2.proj"] == "(S0:(4,1), B:(4,1), S1:(4,1))"


def test_megatron_attention_moves_three_and_three_quarters():
    """AutoDDL Fig. 3: 4 data parallel groups of 16 tensor parallel devices."""
    plan = attention_plan(lambda graph: megatron(graph, (0, 1)))
    assert gibi_elements(plan, "layer2") == pytest.approx(3.75, rel=1e-6)


def test_vgg_dense_layers_are_not_replicated():
    """AutoDDL section 4.5 and Fig. 8: 2D schemes without weight synchronisation on 16 nodes."""
    graph = mlp(128, (25088, 4096, 4096, 1000))
    found = planned(graph, cluster("piz_daint", 16, 1), zero=False, overlap=False)  # its space
    for layer in found.stage.layers:
        assert layer.topology.startswith("(S0:(1,1)"), layer.topology
    # Biases are small enough to be replicated.
    assert found.cost.nic_bytes.gradient_sync < 1e-3 * found.cost.nic_bytes.total


def test_micro_batches_are_as_few_as_fit():
    graph = mlp(4096, (256,) * 9)
    where = cluster("piz_daint", 2, 1)
    whole = planned(graph, where)
    assert whole.stage.micro_batches == 1
    limit = whole.cost.memory_bytes * 0.6
    plan = find_plan(graph, where, PlanOptions(memory_limit_bytes=limit, checkpointing="none"))
    assert plan.micro_batches > 1 and figures(plan).cost.memory_bytes <= limit
    assert plan.graph.batch * plan.micro_batches == plan.batch == 4096


def test_no_plan_says_what_is_missing_where_and_what_would_help():
    with pytest.raises(ValueError) as error:
        find_plan(WIDE, cluster("piz_daint", 2, 2), PlanOptions(memory_limit_bytes=1e6))
    text = str(error.value)
    assert "1 MB" in text and "too much" in text and "fc1" in text and "more devices" in text


@pytest.mark.parametrize(
    ("graph", "where"),
    [
        (WIDE, cluster("piz_daint", 4, 2)),
        # elimination does not reach everything
        pytest.param(alike(64, 16), cluster("gcp_a100", 2, 2), marks=pytest.mark.full),
    ],
)
def test_memory_is_a_hard_limit(graph, where):
    free = planned(graph, where, overlap=False)
    for share in (0.95, 0.8, 0.65, 0.5):
        limit = share * free.memory_peak("executor").bytes
        try:
            options = {"memory_limit_bytes": limit, "baselines": False, "overlap": False}
            found = planned(graph, where, **options)
        except ValueError:
            assert share <= 0.7 and graph is WIDE
            continue
        assert found.memory_peak("executor").bytes <= limit
        assert found.cost.iteration_s >= free.cost.iteration_s * (1 - 1e-6)


def test_a_gap_ends_the_search_early_and_is_kept():
    graph, where = mlp(4096, (256,) * 9), cluster("piz_daint", 32, 1)
    whole = planned(graph, where, baselines=False).cost.memory_bytes
    spared = []
    for share in (0.9, 0.7, 0.5):
        options = {"memory_limit_bytes": share * whole, "baselines": False, "overlap": False}
        exact = planned(graph, where, gap=0.0, **options)
        rough = planned(graph, where, gap=0.1, **options)
        Plan.on_one_mesh(rough.stage).verify()
        assert rough.gap is not None and rough.gap <= 0.1
        assert rough.cost.iteration_s <= exact.cost.iteration_s * 1.1
        spared.append(exact.stage.search.evaluations - rough.stage.search.evaluations)
    assert min(spared) >= 0 and max(spared) > 0


def test_micro_batches_that_do_not_divide_are_named_with_those_that_do():
    with pytest.raises(ValueError, match="1, 2, 4"):
        find_plan(mlp(16, (32, 32)), cluster("laptop", 2, 2), PlanOptions(micro_batches=3))


def test_a_graph_without_a_loss_is_refused():
    with pytest.raises(ValueError, match="loss"):
        find_plan(dataclasses.replace(WIDE, loss=""), cluster("laptop", 2, 2))


def test_micro_batch_counts():
    assert micro_batch_counts(WIDE, 4) == (4,)
    assert micro_batch_counts(mlp(12, (8, 8)), None) == (1, 2, 4)
    huge = WIDE.with_batch(10**15)
    assert micro_batch_counts(huge, None) == tuple(2**n for n in range(16))
    with pytest.raises(ValueError, match=r"possible numbers: 1, 2, 4, 5, 8, .*, 1000, \.\.\.$"):
        micro_batch_counts(huge, 7)
    assert micro_batch_counts(dataclasses.replace(WIDE, batch=0), None) == (1,)
    with pytest.raises(ValueError, match="for one size of the batch"):
        micro_batch_counts(dataclasses.replace(WIDE, batch=0), 2)


def test_a_search_that_finds_nothing_is_told_apart_from_what_cannot_fit():
    graph, where = mlp(64, (64, 256, 64)), cluster("piz_daint", 4, 1)
    fits = planned(graph, where, micro_batches=1, memory_limit_bytes=1e9)
    assert fits.stage.search.end == "done"
    smallest = {"micro_batches": 1, "memory_limit_bytes": 3.2e5}
    assert planned(graph, where, **smallest).cost.memory_bytes
    once = {"search": "random", "restarts": 1, "seed": 1, "baselines": False}
    with pytest.raises(ValueError, match="larger budget"):
        planned(graph, where, **smallest, **once)
