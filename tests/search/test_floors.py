"""Floors of scores against the exact ones."""

import itertools

import numpy as np
import pytest

from autoddl.search.floors import floors, near_optimum
from autoddl.search.problem import Edge, Problem
from tests.search.brute_force import SHAPES, optimum, random_problem


def through(problem):
    """The least score of a choice through each strategy of each node table."""
    found = [np.full(len(cost), np.inf) for cost in problem.node_cost]
    for choice in itertools.product(*map(range, problem.sizes())):
        cost, _ = problem.evaluate(np.array(choice))
        for table, strategy in zip(problem.nodes, choice, strict=True):
            found[table][strategy] = min(found[table][strategy], cost)
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_no_choice_through_a_strategy_falls_below_its_floor(shape):
    for seed in range(5):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        for floor, exact in zip(floors(problem), through(problem), strict=True):
            assert (floor <= exact + 1e-9).all()


def test_messages_along_a_chain_tell_the_optimum():
    rng = np.random.default_rng(3)
    sizes = rng.integers(2, 6, size=5)
    problem = Problem(
        tuple(rng.random(n) for n in sizes),
        tuple(np.zeros(n) for n in sizes),
        tuple(rng.random((a, b)) for a, b in itertools.pairwise(sizes)),
        tuple(np.zeros((a, b)) for a, b in itertools.pairwise(sizes)),
        tuple(range(5)),
        tuple(Edge(v, v + 1, v) for v in range(4)),
    )
    assert min(map(np.min, floors(problem))) == pytest.approx(optimum(problem)[0], rel=1e-5)


def test_entries_that_are_forbidden_are_no_obstacle():
    problem = random_problem(np.random.default_rng(0), 5, SHAPES["residual"])
    problem.edge_cost[1][:, 0] = np.inf
    for floor, exact in zip(floors(problem), through(problem), strict=True):
        assert not np.isnan(floor).any()
        assert (floor <= exact + 1e-9).all()


def test_scores_near_the_optimum_are_exact():
    rng = np.random.default_rng(1)
    fewer = 0
    for _ in range(5):
        sizes = 60, 70, 50
        problem = Problem(
            tuple(rng.random(n) * 5 + 1 for n in sizes),
            tuple(np.zeros(n) for n in sizes),
            (rng.random((60, 70)), rng.random((70, 50)), rng.random((60, 50))),
            (np.zeros((60, 70)), np.zeros((70, 50)), np.zeros((60, 50))),
            (0, 1, 2),
            (Edge(0, 1, 0), Edge(1, 2, 1), Edge(0, 2, 2)),
        )
        few, every = near_optimum(problem, 0.1), near_optimum(problem, np.inf)
        assert few is not None and every is not None
        assert few.lowest == pytest.approx(every.lowest, rel=1e-6)
        fewer += few.valid < np.inf
        for some, exact in zip(few.through, every.through, strict=True):
            near = exact <= few.lowest * 1.1
            assert some[near] == pytest.approx(exact[near], rel=1e-5)
            assert (some[~near] > few.lowest * (1.1 - 1e-5)).all()
    assert fewer == 5


def test_what_elimination_does_not_reach_has_no_scores():
    problem = random_problem(np.random.default_rng(0), 5, SHAPES["clique"])
    assert near_optimum(problem, 0.02) is None
