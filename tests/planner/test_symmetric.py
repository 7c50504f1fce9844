"""The optimum by symmetry against the optimum of all strategies."""

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan, micro_graph
from autoddl.planner.symmetric import cheapest_tables
from autoddl.planner.tables.group_table import WHOLE_SPACE, Space
from autoddl.planner.tables.groups import make_groups
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import build_tables
from autoddl.search.elimination import eliminate
from tests.clusters import cluster
from tests.graphs import attention, mlp

GRAPHS = {
    "mlp": mlp(64, (64, 128, 64)),
    "wide": mlp(32, (512, 2048, 96)),
    "attention": attention(8, 32, 64, 256, 8),
}


def cheapest(graph, where, parts=1, space=WHOLE_SPACE, limit=1e15):
    """(by symmetry, of all strategies)"""
    model = CostModel(where, memory_limit_bytes=limit)
    micro, prices = micro_graph(graph, parts), PairPrices(where.mesh, CostModel(where).comm.price)
    groups, again = make_groups(micro), Recomputation(micro)
    few = cheapest_tables(groups, model, parts, space, prices, again)
    return few, build_tables(micro, model, parts, space)


def least(tables):
    choice = eliminate(tables.problem, 0.0, frozenset()).expand({})
    return tables.problem.evaluate(choice)


@pytest.mark.parametrize(
    ("name", "machine", "nodes", "gpus"),
    [
        ("mlp", "piz_daint", 64, 1),
        ("mlp", "gcp_a100", 12, 4),
        ("wide", "gcp_a100", 8, 4),
        pytest.param("wide", "laptop", 4, 8, marks=pytest.mark.full),
        ("attention", "piz_daint", 32, 1),
        pytest.param("attention", "gcp_a100", 8, 4, marks=pytest.mark.full),
        pytest.param("attention", "laptop", 4, 8, marks=pytest.mark.full),
    ],
)
def test_few_strategies_have_the_optimum_of_all(name, machine, nodes, gpus):
    few, every = cheapest(GRAPHS[name], cluster(machine, nodes, gpus), parts=2)
    assert few is not None and every is not None
    assert sum(few.problem.sizes()) < 0.7 * sum(every.problem.sizes())
    assert least(few)[0] == pytest.approx(least(every)[0], rel=1e-6)


@pytest.mark.parametrize("name", ["mlp", pytest.param("wide", marks=pytest.mark.full)])
def test_in_autoddls_space_too(name):
    space = Space(min_weight_shards=4)
    few, every = cheapest(GRAPHS[name], cluster("piz_daint", 64, 1), space=space)
    assert few is not None and every is not None
    assert least(few)[0] == pytest.approx(least(every)[0], rel=1e-6)


def test_a_limit_that_binds_is_not_for_it():
    graph, where = GRAPHS["wide"], cluster("gcp_a100", 8, 4)
    few, _ = cheapest(graph, where)
    assert few is not None
    memory = least(few)[1]
    assert cheapest(graph, where, limit=memory * 1.01)[0] is not None
    assert cheapest(graph, where, limit=memory * 0.99)[0] is None


def test_the_plan_is_proven_and_shows_another_topology():
    plan = find_plan(GRAPHS["wide"], cluster("gcp_a100", 16, 4), PlanOptions(baselines=False))
    other = find_plan(
        GRAPHS["wide"], cluster("gcp_a100", 16, 4), PlanOptions(baselines=False, search="integer")
    )
    assert plan.search.lower_bound_s is not None
    assert plan.cost.iteration_s <= plan.search.lower_bound_s * (1 + 2e-6)
    assert plan.cost.iteration_s <= other.cost.iteration_s * (1 + 1e-6)
    assert plan.search.lower_bound_s == pytest.approx(other.search.lower_bound_s, rel=1e-5)
    assert any(layer.alternative for layer in plan.layers)
    assert np.isfinite([layer.alternative_extra_s for layer in plan.layers]).all()
