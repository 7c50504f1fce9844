import dataclasses

import numpy as np
import pytest

from autoddl.search.elimination import below, eliminate
from autoddl.search.lagrangian import free_bound
from autoddl.search.problem import ROUNDING, Edge, Problem
from tests.search.brute_force import SHAPES, optimum, priced, random_problem


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


def alike(rng: np.random.Generator, problem: Problem) -> Problem:
    """Other costs of the same choices."""
    node = tuple(rng.random(table.shape) for table in problem.node_cost)
    edge = tuple(rng.random(table.shape) for table in problem.edge_cost)
    return dataclasses.replace(problem, node_cost=node, edge_cost=edge)


@pytest.mark.parametrize("shape", ["chain", "residual", "forest"])
def test_what_goes_on_is_what_brute_force_finds_below_the_ceiling(shape: str):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        first = random_problem(rng, 5, SHAPES[shape])
        problems = [first, alike(rng, first), alike(rng, first)]
        choices = priced(first)[0]
        costs = np.stack([priced(problem)[1] for problem in problems])
        assert np.allclose(first.evaluate_all(choices)[0], costs[0])
        greatest = costs.max(axis=0)
        ceiling = float(np.quantile(greatest, 0.3))
        wanted = {tuple(c): s for c, s in zip(choices, greatest, strict=True) if s < ceiling}
        bounds = [eliminate(problem, 0.0, frozenset()) for problem in problems]
        found = below(bounds, ceiling, len(choices))
        got = dict(zip(map(tuple, found.choices), found.greatest, strict=True))
        assert got == pytest.approx(wanted)
        assert found.bound <= greatest.min()
        assert found.bound == pytest.approx(greatest.min(), rel=2 * ROUNDING)
        few = below(bounds, ceiling, 3)
        assert len(few.choices) == min(3, len(wanted))
        assert set(map(tuple, few.choices)) <= set(wanted)
        assert few.bound <= greatest.min()
