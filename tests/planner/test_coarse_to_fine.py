"""Bounds by classes of strategies, and what they leave, against the whole space."""

import dataclasses

import numpy as np
import pytest

from autoddl.cost.model import CostModel
from autoddl.cost.recompute import Recomputation
from autoddl.planner.asked import micro_graph
from autoddl.planner.coarse_to_fine import class_bounds
from autoddl.planner.fit_in_memory import FittedSearch
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.group_table import WHOLE_SPACE
from autoddl.planner.tables.groups import make_groups
from autoddl.planner.tables.pair_prices import PairPrices
from autoddl.planner.tables.tables import TableBuilder, build_tables
from autoddl.plans.figures import figures
from autoddl.search.budget import Budget
from autoddl.search.exact import auto
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual

GRAPHS = {"wide": mlp(32, (512, 2048, 96)), "attention": attention(8, 32, 64, 256, 8)}


def bounded(name, where, limit, parts=2):
    model = CostModel(where, memory_limit_bytes=limit)
    micro, prices = micro_graph(GRAPHS[name], parts), PairPrices(where.mesh, model.comm.price)
    again = Recomputation(micro)
    builder = TableBuilder(make_groups(micro), model, parts, WHOLE_SPACE, prices, again)
    bounds = class_bounds(builder, prices.least)
    assert bounds is not None
    return bounds.raised(np.inf), prices


def best(problem):
    found = auto(problem, np.random.default_rng(0), Budget())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "shares"),
    [("wide", (1.0, 0.5, 0.1)), pytest.param("attention", (0.8, 0.3), marks=pytest.mark.full)],
)
def test_bounds_and_what_they_leave_within_limits(name, shares):
    where = cluster("gcp_a100", 8, 4)
    model = CostModel(where, memory_limit_bytes=1e15)
    every = build_tables(micro_graph(GRAPHS[name], 2), model, 2)
    assert every is not None
    whole = best(every.problem).memory
    least = best(
        every.problem.restricted([np.argsort(m)[:1] for m in every.problem.node_memory])
    ).memory
    for share in shares:
        limit = least + share * (whole - least)
        tables = build_tables(
            micro_graph(GRAPHS[name], 2), CostModel(where, memory_limit_bytes=limit), 2
        )
        assert tables is not None
        found = best(tables.problem)
        bounds, prices = bounded(name, where, limit)
        assert 0.87 * found.cost < bounds.bound <= found.cost
        assert bounds.free_s <= found.free_cost
        slack = found.cost / bounds.bound - 1 + 1e-9
        few = bounds.tables(bounds.kept(slack), prices)
        assert best(few.problem).cost == pytest.approx(found.cost, rel=1e-6)
        assert sum(few.problem.sizes()) < sum(tables.problem.sizes())


def test_what_fits_nowhere_has_no_finite_bound():
    where = cluster("gcp_a100", 8, 4)
    assert bounded("wide", where, 1.0)[0].bound == np.inf


def test_least_bytes_are_the_limit_below_which_nothing_fits():
    free, _ = bounded("wide", cluster("gcp_a100", 2, 2), 1e15)
    assert free.within(0.999 * free.least_bytes).bound == np.inf
    assert free.within(1.001 * free.least_bytes).bound < np.inf


def test_a_limit_that_does_not_bind_costs_nothing():
    bounds, _ = bounded("wide", cluster("gcp_a100", 8, 4), 1e15)
    assert bounds.dual.price == 0.0
    assert bounds.bound == bounds.free_s


def test_bounds_rise_as_the_limit_falls_and_may_stop_early():
    free, _ = bounded("attention", cluster("gcp_a100", 4, 2), 1e15)
    memory = free.of.whole.evaluate(free.free[0])[1]
    before = free
    for share in (0.9, 0.7, 0.5):
        within = free.within(share * memory)
        assert before.bound < within.bound < np.inf
        before = within
    enough = (free.bound + before.bound) / 2
    early = dataclasses.replace(before, dual=free.dual, near=np.inf).raised(enough)
    assert enough <= early.bound <= before.bound * (1 + 1e-4)


@pytest.mark.parametrize("name", ["wide", pytest.param("attention", marks=pytest.mark.full)])
def test_fewer_micro_batches_in_more_memory_bound_more_of_them(name):
    """k times the micro-batches take no less time, and no less than a k-th of the memory.

    What parameters take as they are stored is known: so the bound is no worse.
    """
    where = cluster("gcp_a100", 8, 4)
    free, _ = bounded(name, where, 1e15, 1)
    memory = free.of.whole.evaluate(free.free[0])[1]
    for share in (0.5, 0.2, 0.05):
        one, _ = bounded(name, where, share * memory, 1)
        both = one.in_more(2, 4).raised(np.inf)
        for parts in (2, 4):
            more, _ = bounded(name, where, share * memory, parts)
            assert both.bound <= more.bound * (1 + 1e-4)
            later = one.in_more(parts).raised(np.inf)
            assert later.bound <= more.bound * (1 + 1e-4)
            assert one.within(parts * share * memory).bound <= later.bound * (1 + 1e-4)
            assert free.free_s <= more.free_s * (1 + 1e-6)


def test_within_another_limit_a_bound_may_be_enough():
    free, _ = bounded("attention", cluster("gcp_a100", 4, 2), 1e15)
    limit = 0.5 * free.of.whole.evaluate(free.free[0])[1]
    whole = free.within(limit).bound
    enough = (free.bound + whole) / 2
    assert enough <= free.within(limit, enough).bound <= whole * (1 + 1e-4)


@pytest.mark.parametrize(
    ("graph", "machine", "nodes", "gpus"),
    [
        (mlp(64, (64, 128, 64)), "piz_daint", 64, 1),
        (GRAPHS["wide"], "gcp_a100", 8, 4),
        pytest.param(GRAPHS["attention"], "piz_daint", 32, 1, marks=pytest.mark.full),
        pytest.param(GRAPHS["attention"], "gcp_a100", 8, 4, marks=pytest.mark.full),
        pytest.param(residual(2, 64, 256), "laptop", 4, 8, marks=pytest.mark.full),
    ],
)
def test_every_algorithm_that_proves_finds_the_optimum_of_all_strategies(
    graph, machine, nodes, gpus
):
    where = cluster(machine, nodes, gpus)
    every = build_tables(micro_graph(graph, 1), CostModel(where, memory_limit_bytes=1e15))
    assert every is not None
    least = best(every.problem).cost
    for search in ("auto", "integer"):
        options = PlanOptions(
            micro_batches=1, search=search, gap=0.0, baselines=False, memory_limit_bytes=1e15,
            overlap=False,
        )  # fmt: skip
        plan = find_plan(graph, where, options)
        assert figures(plan).cost.iteration_s == pytest.approx(least, rel=3e-6)
        assert plan.stage.search.lower_bound_s == pytest.approx(least, rel=3e-6)
        assert any(layer.alternative for layer in plan.layers)


def test_where_the_bound_is_loose_a_choice_tells_how_loose_at_most(monkeypatch):
    """Two rounds: the slack was raised fourfold until it was enough, in three."""
    rounds = []
    search = FittedSearch.search
    monkeypatch.setattr(FittedSearch, "search", lambda *own: rounds.append(own) or search(*own))
    options = PlanOptions(micro_batches=1, baselines=False, overlap=False)
    find_plan(mlp(64, (256, 512, 512, 256)), cluster("laptop", 4, 4), options)
    assert len(rounds) == 2


def test_a_heuristic_searches_among_the_same_strategies_and_has_their_bound():
    options = PlanOptions(search="random", restarts=200, baselines=False)
    where = cluster("gcp_a100", 8, 4)
    plan = find_plan(GRAPHS["wide"], where, options)
    exact = find_plan(GRAPHS["wide"], where, PlanOptions(search="auto", baselines=False))
    assert plan.stage.search.lower_bound_s is not None
    assert (
        0
        < plan.stage.search.lower_bound_s
        <= figures(exact).cost.iteration_s
        <= figures(plan).cost.iteration_s
    )
