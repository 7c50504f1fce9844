"""The strategies that bounds leave against the optimum of exact tables."""

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.planner import refine
from autoddl.planner.planner import micro_graph
from autoddl.planner.refine import possible
from autoddl.planner.tables.group_table import Space
from autoddl.planner.tables.groups import make_groups
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import TableBuilder
from autoddl.search.eliminate import eliminate
from tests.clusters import cluster
from tests.graphs import mlp


def prepared(where, graph=None):
    micro = micro_graph(graph or mlp(64, (64, 128, 64)), 1)
    prices = PairPrices(where.mesh, CostModel(where).comm.price)
    model = CostModel(where, memory_limit_bytes=1e15)
    builder = TableBuilder(make_groups(micro), model, 1, Space(), prices, Recomputation(micro))
    assert builder.prepare()
    return builder, prices


@pytest.mark.parametrize(("machine", "nodes", "gpus"), [("piz_daint", 32, 1), ("gcp_a100", 4, 4)])
def test_few_strategies_are_left_and_the_optimum_is_among_them(machine, nodes, gpus):
    builder, prices = prepared(cluster(machine, nodes, gpus))
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.permutation(len(table.assign))[:60]) for table in builder.group_tables]

    def least(of):
        problem = builder.among(of, prices).build().problem
        return problem.evaluate(eliminate(problem, 0.0, frozenset()).expand({}))[0]

    bounds = builder.among(rows, prices.least).build().problem
    kept, cost = possible(builder, rows, bounds, np.inf)
    assert sum(map(len, kept)) < 0.5 * sum(map(len, rows))
    assert all(np.isin(some, own).all() for some, own in zip(kept, rows, strict=True))
    assert least(kept) == pytest.approx(least(rows), rel=1e-6)
    assert cost == pytest.approx(least(rows), rel=1e-5)


@pytest.mark.parametrize(
    ("nodes", "seed"),
    [
        (16, 0),  # a small table rules out most of a large one
        (32, 1),  # a choice near the best does
    ],
)
def test_large_tables_are_searched_from_few_strategies(monkeypatch, nodes, seed):
    builder, prices = prepared(cluster("piz_daint", nodes, 1), mlp(512, (4096, 4096, 1000)))
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.permutation(len(table.assign))[:60]) for table in builder.group_tables]
    bounds = builder.among(rows, prices.least).build().problem
    refined, starts = refine._refined, []

    def recorded(problem, ends, kept, exact, edges, nodes):
        starts.extend(min(len(kept[end]) for end in ends[table]) for table in edges)
        return refined(problem, ends, kept, exact, edges, nodes)

    monkeypatch.setattr(refine, "_refined", recorded)
    at_once, in_turn = [], []
    for many, found in ((1000, at_once), (10, in_turn)):
        monkeypatch.setattr(refine, "_MANY", many)
        found += [possible(builder, rows, bounds, np.inf)[1], max(starts)]
        starts.clear()
    assert in_turn[0] == pytest.approx(at_once[0], rel=1e-6)
    assert at_once[1] > 10 >= in_turn[1]


def test_parts_are_entries_of_the_tables():
    builder, prices = prepared(cluster("gcp_a100", 4, 4))
    rows = [np.arange(min(30, len(table.assign))) for table in builder.group_tables]
    some = builder.among(rows, prices)
    wires, nodes = some.parts([(0, np.array([1, 3]), np.array([0, 2, 5]))], [(1, np.array([4, 7]))])
    problem = builder.among(rows, prices).build().problem
    assert wires[0][0] == pytest.approx(problem.edge_cost[0][np.ix_([1, 3], [0, 2, 5])])
    assert wires[0][1] == pytest.approx(problem.edge_memory[0][np.ix_([1, 3], [0, 2, 5])])
    assert nodes[0] == pytest.approx(problem.node_cost[1][[4, 7]])
