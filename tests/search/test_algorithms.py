"""Every algorithm of the table against brute force on random small problems."""

import dataclasses
import itertools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.planner.options import PROVING
from autoddl.search.algorithms import ALGORITHMS, find_algorithm
from autoddl.search.budget import Budget, Progress
from autoddl.search.exact import auto
from autoddl.search.heuristics.metropolis_hastings import acceptance
from autoddl.search.problem import Edge, Problem, relative_gap
from tests.search.brute_force import SHAPES, k_tree, optimum, random_problem

TOLERANCE = 2e-6  # the tables of an elimination are of single precision

# A memory limit relative to the least memory of any choice; below 1 nothing fits.
SLACKS = st.sampled_from([0.9, 1.0, 1.02, 1.1, 1.4, math.inf])


def limited(seed, shape, slack):
    """A problem whose limit is `slack` times the least memory; (problem, its optimum)."""
    free = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
    if slack < math.inf:
        free = dataclasses.replace(free, memory_limit=optimum(free)[1] * slack + 1e-9)
    return free, optimum(free)[0]


def run(name, problem, budget=None, restarts=16):
    restarts = 2 if name == "metropolis_hastings" and budget is None else restarts
    return ALGORITHMS[name](problem, np.random.default_rng(0), budget or Budget(), restarts)


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(list(SHAPES)), slack=SLACKS)
def test_conforms(name, seed, shape, slack):
    problem, best = limited(seed, shape, slack)
    result = run(name, problem)
    if result is None:
        assert best == math.inf or name not in PROVING, "a choice within the limit exists"
        return
    assert problem.evaluate(result.choice) == pytest.approx((result.cost, result.memory))
    assert result.memory <= problem.memory_limit
    assert best * (1 - 1e-12) <= result.cost
    assert result.lower_bound <= best * (1 + 1e-12)
    assert result.end == "done"
    if name in PROVING:
        assert result.cost <= best * (1 + TOLERANCE)
        assert result.gap == 0
    costs = [point.cost for point in result.curve]
    assert costs == sorted(costs, reverse=True) and costs[-1] == result.cost
    evaluations = [point.evaluations for point in result.curve]
    assert evaluations == sorted(evaluations) and evaluations[-1] <= result.evaluations


@pytest.mark.parametrize("name", PROVING)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(list(SHAPES)),
    slack=SLACKS,
    gap=st.sampled_from([0.01, 0.1, 0.5]),
)
def test_keeps_to_the_gap(name, seed, shape, slack, gap):
    problem, best = limited(seed, shape, slack)
    exact, rough = run(name, problem), run(name, problem, Budget(gap=gap))
    if rough is None:
        assert exact is None
        return
    assert best * (1 - 1e-12) <= rough.cost <= best * (1 + gap) * (1 + TOLERANCE)
    assert rough.lower_bound <= best * (1 + 1e-12)
    assert rough.gap <= gap + 4 * TOLERANCE
    # bounds that stop at the gap may leave a little more to look at
    assert exact is not None and rough.evaluations <= 1.25 * exact.evaluations


def test_a_bound_that_is_known_ends_the_search():
    problem, best = limited(3, "residual", 1.02)
    known = dataclasses.replace(problem, known_bound=best)
    enough = run("auto", known, Budget(gap=1.0))
    exact = run("auto", problem)
    assert enough is not None and enough.cost <= 2 * best
    assert exact is not None and enough.evaluations < exact.evaluations


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from(list(SHAPES)),
    slack=SLACKS,
    evaluations=st.integers(1, 60),
)
def test_honours_a_budget_of_evaluations(name, seed, shape, slack, evaluations):
    problem, best = limited(seed, shape, slack)
    result = run(name, problem, Budget(evaluations=evaluations))
    if result is not None:
        assert result.evaluations <= evaluations
        assert result.memory <= problem.memory_limit
        assert result.lower_bound <= best * (1 + 1e-12) <= result.cost * (1 + 1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_honours_a_budget_of_seconds(name):
    problem, _ = limited(1, "clique", 1.1)
    result = run(name, problem, Budget(seconds=0.2))
    assert result is None or result.seconds < 2.0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_heuristics_reach_the_optimum_of_most_small_problems(name):
    if name == "random":
        return
    reached = 0
    for seed in range(12):
        problem, best = limited(seed, list(SHAPES)[seed % len(SHAPES)], math.inf)
        result = run(name, problem, Budget())
        assert result is not None
        reached += result.cost <= best * (1 + TOLERANCE)
    assert reached >= 11


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_seed_same_choice(name):
    problem, _ = limited(5, "clique", 1.4)
    first, second = run(name, problem), run(name, problem)
    if first is None or second is None:
        assert first is second
        return
    assert (first.choice == second.choice).all()
    assert first.evaluations == second.evaluations


def proven(problem):
    """The optimum is found and proven; the search's result."""
    best = optimum(problem)[0]
    result = auto(problem, np.random.default_rng(0), Budget())
    assert result is not None and result.end == "done"
    assert best * (1 - 1e-12) <= result.cost <= best * (1 + TOLERANCE)
    assert result.lower_bound <= best * (1 + 1e-12) and result.gap == 0
    return result


def wide(seed, slack):
    """A problem of tree-width 3 to 6; slack: of its limit."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 7, k_tree(rng, 7, width=3 + seed % 4))
    return dataclasses.replace(problem, memory_limit=optimum(problem)[1] * slack + 1e-9)


@pytest.mark.parametrize("graphs", [80, pytest.param(200, marks=pytest.mark.full)])
def test_graphs_of_tree_width_3_to_6_are_proven(graphs):
    for seed in range(graphs):
        proven(wide(seed, math.inf if seed % 16 else 1.1))


@pytest.mark.full
def test_within_memory_limits_too():
    for seed in range(200):
        proven(wide(seed, (1.02, 1.1, 1.4)[seed // 4 % 3]))


def test_where_pairs_are_too_many_an_integer_program_decides(monkeypatch):
    monkeypatch.setattr("autoddl.search.reduced_costs._MOST_PAIRS", 2)
    for seed in range(8):
        proven(wide(seed, 1.1))


def test_where_that_is_too_large_as_well_the_end_says_so(monkeypatch):
    monkeypatch.setattr("autoddl.search.reduced_costs._MOST_PAIRS", 2)
    monkeypatch.setattr("autoddl.search.exact._MOST_COLUMNS", 2)
    ends = set()
    for seed in range(8):
        problem = wide(seed, 1.1)
        result = auto(problem, np.random.default_rng(0), Budget())
        assert result is not None and result.lower_bound <= optimum(problem)[0] * (1 + 1e-12)
        assert (result.gap == 0) == (result.end == "done")
        ends.add(result.end)
    assert "size" in ends


def test_what_takes_long_is_left_where_any_gap_may_be(monkeypatch):
    """A choice that fits, without joining variables in pairs and without an integer program."""
    monkeypatch.delattr("autoddl.search.exact._merge")
    for seed in range(8):
        problem = wide(seed, 1.1)
        result = auto(problem, np.random.default_rng(0), Budget(gap=0.01, long_gap=math.inf))
        assert result is not None and result.memory <= problem.memory_limit
        assert result.lower_bound <= optimum(problem)[0] * (1 + 1e-12) and result.end == "size"


def test_many_variables_of_one_strategy_leave_nothing_over():
    """Each of 34 is a neighbour of all others."""
    rng = np.random.default_rng(0)
    sizes = [1] * 31 + [2, 3, 2]
    edges = [Edge(a, b, n) for n, (a, b) in enumerate(itertools.combinations(range(34), 2))]
    costs = tuple(rng.random((sizes[e.first], sizes[e.second])) for e in edges)
    nodes = tuple(rng.random(n) for n in sizes)
    zeros = tuple(map(np.zeros_like, costs))
    proven(
        Problem(
            nodes, tuple(map(np.zeros_like, nodes)), costs, zeros, tuple(range(34)), tuple(edges)
        )
    )


def test_auto_gives_a_choice_that_fits_on_the_least_budget():
    for seed in range(8):
        problem, best = limited(seed, "residual", 1.02)
        result = auto(problem, np.random.default_rng(0), Budget(evaluations=1))
        assert result is not None and result.end == "budget"
        assert result.cost >= best * (1 - 1e-12)


def test_the_best_so_far_survives_an_interrupt():
    problem, _ = limited(2, "chain", math.inf)
    with Progress(problem, Budget()) as running:
        running.spend()
        running.offer(np.zeros(5, dtype=np.int64))
        raise KeyboardInterrupt
    result = running.result("any")
    assert result is not None and result.end == "interrupted"
    with pytest.raises(KeyboardInterrupt), Progress(problem, Budget()):
        raise KeyboardInterrupt  # nothing to return yet


def test_the_acceptance_rule_samples_the_stated_distribution():
    """Two states of which each proposes the other are visited as exp(-beta cost)."""
    beta, costs = 2.0, (1.0, 1.7)
    rng, state, visits = np.random.default_rng(0), 0, [0, 0]
    for _ in range(20_000):
        if rng.random() < acceptance(beta, costs[state], costs[1 - state]):
            state = 1 - state
        visits[state] += 1
    assert visits[1] / visits[0] == pytest.approx(math.exp(-beta * 0.7), rel=0.05)


def test_exhaustive_refuses_what_does_not_end():
    problem = random_problem(np.random.default_rng(0), 400, [(i, i + 1) for i in range(399)])
    with pytest.raises(ValueError, match="give a budget"):
        run("exhaustive", problem)
    result = run("exhaustive", problem, Budget(evaluations=1000))
    assert result is not None and result.end == "budget" and result.lower_bound == -math.inf


def test_a_gap_within_rounding_is_none():
    assert relative_gap(1.0, 1.0 - 1e-6) == 0.0
    assert relative_gap(1.0, 0.5) == 1.0
    assert relative_gap(1.0, -math.inf) == math.inf


def test_a_budget_is_checked():
    budgets: list[dict[str, Any]] = [{"evaluations": 0}, {"seconds": 0.0}]
    for wrong in budgets:
        with pytest.raises(ValueError, match="a search needs"):
            Budget(**wrong)
    with pytest.raises(ValueError, match="a search needs at least one start"):
        run("auto", random_problem(np.random.default_rng(0), 5, SHAPES["chain"]), None, 0)


def test_the_table_imports_no_algorithm():
    """`autoddl --help` lists the names."""
    code = (
        "import sys, autoddl.search.algorithms; "
        "sys.exit(bool({'numpy', 'scipy', 'autoddl.search.exact'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unknown_algorithm_names_the_known():
    with pytest.raises(ValueError, match="coordinate_descent"):
        find_algorithm("simulated annealing")


def test_a_search_remembers_the_last_choices_that_were_the_best():
    problem = random_problem(np.random.default_rng(3), 5, SHAPES["clique"])
    choices = sorted(
        (np.array(c) for c in itertools.product(*map(range, problem.sizes()))),
        key=lambda c: -problem.evaluate(c)[0],
    )[-6:]

    def found(run):
        return [problem.evaluate(choice)[0] for choice in run.result("some").earlier]

    costs = [problem.evaluate(choice)[0] for choice in choices]
    with Progress(problem, Budget()) as running:
        for choice in choices[:3]:
            running.offer(choice)
        assert found(running) == [costs[1], costs[0]]
        running.offer(choices[0])
        running.offer(choices[4])
    assert running.cost == costs[4]
    assert found(running) == [costs[2], costs[1]]
