"""The recipe of docs/architecture.md: a search algorithm, from outside the package."""

import numpy as np
import pytest

import autoddl
from autoddl.plans.figures import figures
from autoddl.search.algorithms import Algorithm
from autoddl.search.budget import Budget, Progress
from tests.clusters import cluster
from tests.graphs import mlp
from tests.search.brute_force import SHAPES, optimum, random_problem


def one_sweep(problem, rng, budget):
    """Give each variable in turn its cheapest strategy, the others fixed: one sweep of descent."""
    del rng
    with Progress(problem, budget) as run:
        choice = np.zeros(len(problem.nodes), dtype=np.int64)
        for variable, table in enumerate(problem.nodes):
            count = len(problem.node_cost[table])
            tried = np.repeat(choice[None], count, axis=0)
            tried[:, variable] = np.arange(count)
            priced = [problem.evaluate(one) for one in tried]
            fits = [memory <= problem.memory_limit for _, memory in priced]
            costs = np.where(fits, [cost for cost, _ in priced], np.inf)
            choice = tried[int(np.argmin(costs))]
        run.spend()
        run.offer(choice)
    return run.result("one sweep")


ONE_SWEEP = Algorithm(one_sweep)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_held_against_brute_force(shape):
    problem = random_problem(np.random.default_rng(0), 5, SHAPES[shape])
    result = ONE_SWEEP(problem, np.random.default_rng(0), Budget())
    assert result is not None and result.cost >= optimum(problem)[0]
    assert result.cost == pytest.approx(problem.evaluate(result.choice)[0])


def test_it_plans():
    """The plan says who found it, is no better than the optimum, and the same every time."""
    graph, where = mlp(16, (32, 64, 64, 32)), cluster("gcp_a100", 2, 2)
    found = autoddl.plan(graph, where, search=ONE_SWEEP, baselines=False)
    best = autoddl.plan(graph, where, baselines=False)
    assert found.stage.search.algorithm == "one sweep"
    assert figures(found).cost.iteration_s >= figures(best).cost.iteration_s
    again = autoddl.plan(graph, where, search=ONE_SWEEP, baselines=False)
    assert again.dumps() == found.dumps()


def test_it_cannot_keep_to_a_gap():
    with pytest.raises(ValueError, match="proves no bound"):
        autoddl.plan(mlp(16, (8, 8)), cluster("gcp_a100", 2, 2), search=ONE_SWEEP, gap=0.01)
