"""The order along a network against elimination in rounds, and what it saves fronts."""

import dataclasses

import numpy as np
import pytest

from autoddl.search import pareto_elimination
from autoddl.search.elimination import eliminate, eliminated_along_chains
from autoddl.search.elimination_order import without_fixed_cycles
from autoddl.search.pareto_elimination import least_within
from autoddl.search.problem import Edge
from autoddl.search.reduced_costs import ReducedCosts
from tests.search.brute_force import SHAPES, optimum, random_problem
from tests.search.test_exact import all_choices, blocks, problems


def single_strategies():
    """Random problems of every shape, in which some variables have one strategy."""
    for seed in range(8):
        for shape in SHAPES.values():
            rng = np.random.default_rng(seed)
            yield random_problem(rng, 5, shape)


def deep(count, part=0.4):
    """A deep network of equal blocks, under a limit between what is cheapest and what is least."""
    free = blocks(np.random.default_rng(4), count)
    least, most = (
        free.evaluate(eliminate(free, price, frozenset()).expand({}))[1] for price in (1e6, 0.0)
    )
    return dataclasses.replace(free, memory_limit=least + part * (most - least))


def within(problem, state, price, best, loss=0.0):
    return least_within(problem, state, ReducedCosts(state), price, best, 10**8, loss)


def chosen(found):
    assert found.choice is not None
    return found.choice


def test_every_order_gives_the_same_least_score():
    for problem in problems():
        rounds, along = eliminate(problem, 0.7, frozenset()), eliminated_along_chains(problem, 0.7)
        assert not along.node
        assert along.constant == pytest.approx(rounds.constant)
        scores = [np.dot(problem.evaluate(s.expand({})), (1, 0.7)) for s in (rounds, along)]
        assert scores[0] == pytest.approx(scores[1])


def test_fronts_along_find_the_optimum_within_the_limit():
    for problem in problems():
        best, _ = optimum(problem)
        for price in (0.0, 1.0):
            state = eliminated_along_chains(problem, price)
            found = within(problem, state, price, best * 1.1 + 1e-9)
            cost, memory = problem.evaluate(chosen(found))
            assert memory <= problem.memory_limit
            assert cost == pytest.approx(best)
            assert within(problem, state, price, best * 0.99).choice is None


def test_a_chain_of_blocks_disappears_from_its_ends():
    order = eliminated_along_chains(deep(20), 0.0).order
    assert order.products <= 3  # of blocks at an end, and all others
    sizes = [0] * order.slots  # variables that each node table stands for
    for step in order.steps:
        if step.kind == "absorb":
            node, _, leaf = (max(1, sizes[slot]) for slot in step.args)
            sizes[step.out] = node + leaf
    assert max(sizes) >= 21
    assert 10 <= sizes[order.steps[-1].args[2]] <= 11  # the last sum is in the middle


def test_along_a_deep_network_fronts_have_fewer_pairs():
    problem = deep(40)
    rounds, along = eliminate(problem, 2.0, frozenset()), eliminated_along_chains(problem, 2.0)
    slow, fast = within(problem, rounds, 2.0, 1e3), within(problem, along, 2.0, 1e3)
    costs = [problem.evaluate(chosen(found))[0] for found in (slow, fast)]
    assert costs[0] == pytest.approx(costs[1])
    assert fast.work < 0.7 * slow.work


def test_many_small_losses_stay_small(monkeypatch):
    monkeypatch.setattr(pareto_elimination, "_LONG", 3)
    problem = deep(200)
    state = eliminated_along_chains(problem, 2.0)
    exact = problem.evaluate(chosen(within(problem, state, 2.0, 1e3)))[0]
    for loss in (1e-4, 1e-2, 1.0):
        found = within(problem, state, 2.0, 1e3, loss * exact)
        cost, memory = problem.evaluate(chosen(found))
        assert memory <= problem.memory_limit
        assert exact - 1e-9 <= cost <= exact * (1 + loss) + 1e-9


def test_loosened_problems_price_every_choice_alike():
    fewer = 0
    for problem in single_strategies():
        loose = without_fixed_cycles(problem)
        fewer += len(problem.edges) - len(loose.edges)
        for choice in all_choices(problem):
            assert loose.evaluate(choice) == pytest.approx(problem.evaluate(choice))
    assert fewer > 0


def test_loosened_problems_stay_connected_and_equal_blocks_equal():
    free = blocks(np.random.default_rng(0), 6)
    hub = free.num_variables  # one strategy, between all blocks
    edges = tuple(Edge(2 * block, hub, 3) for block in range(7))
    problem = dataclasses.replace(
        free,
        node_cost=(*free.node_cost, np.ones(1)),
        node_memory=(*free.node_memory, np.ones(1)),
        edge_cost=(*free.edge_cost, np.array([[0.5], [0.1]])),
        edge_memory=(*free.edge_memory, np.array([[0.2], [0.3]])),
        nodes=(*free.nodes, 2),
        edges=(*free.edges, *edges),
    )
    loose = without_fixed_cycles(problem)
    assert len(loose.edges) == len(free.edges) + 1
    assert len(loose.node_cost) == 4
    order = eliminated_along_chains(loose, 0.0).order
    assert len(order.roots) == 1
