import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.search.dominance import prune, undominated
from autoddl.search.problem import Edge, Problem
from autoddl.search.reduced_costs import Restricted
from tests.search.brute_force import SHAPES, optimum, random_problem


def coarse(problem):
    """The problem with costs rounded to few levels, so that strategies dominate each other."""
    return dataclasses.replace(
        problem,
        **{
            name: tuple(np.round(table * 2) for table in getattr(problem, name))
            for name in ("node_cost", "node_memory", "edge_cost", "edge_memory")
        },
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(list(SHAPES)),
    slack=st.sampled_from([1.0, 1.2, math.inf]),
)
def test_pruning_keeps_the_optimum_under_every_memory_limit(seed, shape, slack):
    free = coarse(random_problem(np.random.default_rng(seed), 5, SHAPES[shape]))
    best, least = optimum(free)
    problem = dataclasses.replace(free, memory_limit=least * slack if slack < np.inf else slack)
    smaller = Restricted.of(problem).among(prune(problem))
    found, least_found = optimum(smaller.problem)
    assert (found, least_found) == pytest.approx((optimum(problem)[0], least))
    choice = np.array([size - 1 for size in smaller.problem.sizes()])
    assert problem.evaluate(smaller.original(choice)) == pytest.approx(
        smaller.problem.evaluate(choice)
    )


def test_pruning_prunes():
    shrunk = 0
    for seed in range(20):
        problem = coarse(random_problem(np.random.default_rng(seed), 5, SHAPES["chain"]))
        shrunk += sum(problem.restricted(prune(problem)).sizes()) < sum(problem.sizes())
    assert shrunk > 10


@given(st.integers(0, 10_000))
def test_undominated_is_the_definition(seed):
    rows = np.random.default_rng(seed).integers(0, 3, (8, 3)).astype(float)
    expected = [
        i
        for i, row in enumerate(rows)
        if not any(
            (other <= row).all() and ((other < row).any() or j < i)
            for j, other in enumerate(rows)
            if j != i
        )
    ]
    assert undominated(rows).tolist() == expected


def test_equal_layers_still_share_their_tables():
    node, edge = np.array([1.0, 2.0, 0.5]), np.zeros((3, 3))
    problem = Problem(
        (node,), (np.zeros(3),), (edge,), (edge,), (0,) * 6,
        tuple(Edge(i, i + 1, 0) for i in range(5)),
    )  # fmt: skip
    smaller = problem.restricted(prune(problem))
    assert smaller.sizes() == (1,) * 6
    assert len(smaller.node_cost) == 1 and len(smaller.edge_cost) == 1
