"""The integer program of counts against brute force."""

import dataclasses

import numpy as np
import pytest

from autoddl.search.counts import least_by_counts
from autoddl.search.eliminate import eliminate
from autoddl.search.fronts import least_within
from autoddl.search.marginals import Contexts
from tests.search.brute_force import optimum
from tests.search.test_narrow import blocks, problems


def least(problem, price, below, columns=10**6):
    state = eliminate(problem, price, frozenset())
    return least_by_counts(problem, state, Contexts(state), price, below, columns, nodes=1000)


def test_counts_find_the_optimum_within_the_limit():
    for problem in problems():
        best, _ = optimum(problem)
        for price in (0.0, 1.0):
            found = least(problem, price, best * 1.1 + 1e-9)
            assert found is not None and found.choice is not None
            cost, memory = problem.evaluate(found.choice)
            assert memory <= problem.memory_limit * (1 + 1e-9)
            assert cost == pytest.approx(best, rel=2e-6)
            assert best * (1 - 1e-5) <= found.bound <= best + 1e-9


def test_nothing_within_the_limit_is_proven():
    problem = blocks(np.random.default_rng(0), 3)
    _, smallest = optimum(problem)
    tight = dataclasses.replace(problem, memory_limit=smallest * 0.99)
    found = least(tight, 0.0, 1e3)
    assert found is not None and found.choice is None and found.bound == np.inf
    found = least(problem, 0.0, 0.0)  # nothing costs less than nothing
    assert found is not None and found.choice is None and found.bound == np.inf


def test_equal_blocks_hardly_enlarge_the_program():
    def of(count):
        problem = blocks(np.random.default_rng(1), count)
        extremes = [eliminate(problem, price, frozenset()).expand({}) for price in (0.0, 1e3)]
        limit = float(np.mean([problem.evaluate(choice)[1] for choice in extremes]))
        return dataclasses.replace(problem, memory_limit=1.001 * limit)

    assert least(of(8), 1.0, 1e3, columns=150) is not None
    assert least(of(64), 1.0, 1e3, columns=150) is None
    found = least(of(64), 1.0, 1e3, columns=300)
    assert found is not None and found.choice is not None
    state = eliminate(of(64), 1.0, frozenset())
    fronts = least_within(of(64), state, Contexts(state), 1.0, found.bound * 1.001, 10**7)
    assert fronts.choice is not None
    assert of(64).evaluate(found.choice)[0] == pytest.approx(of(64).evaluate(fronts.choice)[0])
