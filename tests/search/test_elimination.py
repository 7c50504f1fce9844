import numpy as np
import pytest

from autoddl.search.elimination import eliminate
from autoddl.search.lagrangian import free_bound
from autoddl.search.problem import Edge, Problem
from tests.search.brute_force import SHAPES, optimum, random_problem


@pytest.mark.parametrize("shape", ["chain", "residual", "forest"])
def test_series_parallel_graphs_disappear_and_the_constant_is_the_optimum(shape):
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        state = eliminate(problem, 0.0, frozenset())
        assert not state.node
        best, _ = optimum(problem)
        assert state.constant == pytest.approx(best)
        assert problem.evaluate(state.expand({}))[0] == pytest.approx(best)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_free_bound_is_below_every_choice_and_tight_without_a_rest(shape):
    for seed in range(10):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        best, _ = optimum(problem)
        bound = free_bound(problem)
        assert bound <= best
        if not eliminate(problem, 0.0, frozenset()).node:
            assert bound == pytest.approx(best, rel=3e-6)


def test_kept_variables_stay_and_the_rest_is_chosen_for_them():
    problem = random_problem(np.random.default_rng(1), 5, SHAPES["residual"])
    state = eliminate(problem, 0.0, frozenset({0, 3}))
    assert set(state.node) == {0, 3}
    fixed = {0: 0, 3: 0}
    choice = state.expand(fixed)
    assert choice[0] == 0 and choice[3] == 0
    free = [v for v in range(5) if v not in fixed]
    for variable in free:
        for strategy in range(problem.sizes()[variable]):
            other = choice.copy()
            other[variable] = strategy
            assert problem.evaluate(other)[0] >= problem.evaluate(choice)[0] - 1e-12


def test_a_chain_of_equal_blocks_costs_the_logarithm_of_its_length():
    rng = np.random.default_rng(2)
    node, edge = rng.random(6), rng.random((6, 6))

    def products(length: int) -> int:
        problem = Problem(
            (node,), (node * 0,), (edge,), (edge * 0,), (0,) * length,
            tuple(Edge(i, i + 1, 0) for i in range(length - 1)),
        )  # fmt: skip
        return eliminate(problem, 0.0, frozenset()).order.products

    assert products(256) <= products(64) + 8
