"""Every algorithm of the table against brute force on random small problems."""

import dataclasses

import numpy as np
import pytest

from autoddl.search.algorithms import ALGORITHMS, find_algorithm
from autoddl.search.budget import Budget
from tests.search.brute_force import SHAPES, optimum, random_problem


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_finds_the_optimum_of_small_problems(name, shape):
    for seed in range(8):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        best, _ = optimum(problem)
        result = ALGORITHMS[name](problem, np.random.default_rng(0), Budget(restarts=64))
        assert result is not None
        assert problem.evaluate(result.choice) == pytest.approx((result.cost, result.memory))
        assert result.lower_bound <= result.cost
        if name == "random":
            assert result.cost >= best - 1e-12
        else:
            assert result.cost == pytest.approx(best)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_keeps_the_memory_limit(name, shape):
    ratios = []
    for seed in range(8):
        free = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        _, least = optimum(free)
        for slack in (1.0, 1.1, 1.5):
            problem = dataclasses.replace(free, memory_limit=least * slack + 1e-9)
            best, _ = optimum(problem)
            result = ALGORITHMS[name](problem, np.random.default_rng(0), Budget(restarts=64))
            if result is None:
                assert name == "random", "a choice within the limit exists"
                continue
            assert result.memory <= problem.memory_limit
            assert result.lower_bound <= best + 1e-9
            ratios.append(result.cost / best)
    assert np.median(ratios) < 1.05


@pytest.mark.parametrize("name", ALGORITHMS)
def test_says_none_when_nothing_fits(name):
    free = random_problem(np.random.default_rng(3), 5, SHAPES["chain"])
    _, least = optimum(free)
    problem = dataclasses.replace(free, memory_limit=least * 0.9)
    assert ALGORITHMS[name](problem, np.random.default_rng(0), Budget(restarts=8)) is None


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_seed_same_choice(name):
    problem = random_problem(np.random.default_rng(5), 5, SHAPES["clique"])
    first, second = (
        ALGORITHMS[name](problem, np.random.default_rng(7), Budget(restarts=4)) for _ in range(2)
    )
    assert first is not None and second is not None
    assert (first.choice == second.choice).all()


def test_unknown_algorithm_names_the_known():
    with pytest.raises(ValueError, match="coordinate_descent"):
        find_algorithm("simulated annealing")
