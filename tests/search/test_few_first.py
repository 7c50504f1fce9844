"""The best price of memory by few strategies, against many prices of all."""

import dataclasses

import numpy as np
import pytest

from autoddl.search import view
from autoddl.search.dual import Dual, score_bound
from autoddl.search.eliminate import eliminate
from autoddl.search.few_first import price_by_few
from autoddl.search.problem import Edge, Problem
from tests.search.brute_force import optimum

NONE = Dual(0.0, -np.inf)


def problem(seed: int, slack: float) -> tuple[Problem, np.ndarray]:
    """A chain whose limit is between the least memory and the cheapest choice's; that choice."""
    rng = np.random.default_rng(seed)
    sizes = (6, 5, 6, 5)
    ends = list(zip(sizes, sizes[1:], strict=False))
    made = Problem(
        tuple(rng.random(n) for n in sizes),
        tuple(rng.random(n) for n in sizes),
        tuple(rng.random(shape) for shape in ends),
        tuple(rng.random(shape) * 0.1 for shape in ends),
        tuple(range(4)),
        tuple(Edge(n, n + 1, n) for n in range(3)),
    )
    free = eliminate(made, 0.0, frozenset()).expand({})
    least, whole = optimum(made)[1], made.evaluate(free)[1]
    return dataclasses.replace(made, memory_limit=least + slack * (whole - least)), free


@pytest.mark.parametrize("few", [1, 2, 25])
def test_the_price_is_the_best_of_all_strategies(monkeypatch, few):
    monkeypatch.setattr(view, "GOOD", few)
    for seed in range(8):
        made, free = problem(seed, 0.4)
        found = price_by_few(made, free, NONE, np.inf, 1e-5)
        assert found.bound <= optimum(made)[0]
        unit = made.evaluate(free)[0] / made.memory_limit
        for price in unit * np.geomspace(0.01, 100, 60):
            choice = eliminate(made, price, frozenset()).expand({})
            assert score_bound(made, choice, price) <= found.bound * (1 + 1e-4)


def test_what_is_enough_ends_it_and_what_fits_nowhere_has_no_bound():
    made, free = problem(0, 0.4)
    best = price_by_few(made, free, NONE, np.inf, 1e-5)
    lowest = made.evaluate(free)[0]
    enough = (lowest + best.bound) / 2
    assert enough <= price_by_few(made, free, NONE, enough, 1e-5).bound <= best.bound * (1 + 1e-5)
    known = Dual(best.price, best.bound)
    assert price_by_few(made, free, known, enough, 1e-5) == known
    least = optimum(made)[1]
    tight = dataclasses.replace(made, memory_limit=least * 0.99)
    assert price_by_few(tight, free, NONE, np.inf, 1e-5).bound == np.inf
    loose = dataclasses.replace(made, memory_limit=1e9)
    assert price_by_few(loose, free, NONE, np.inf, 1e-5).price == 0.0
