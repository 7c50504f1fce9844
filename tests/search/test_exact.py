"""Reduced costs, Pareto elimination and crossovers against brute force."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autoddl.search import exact as exact_search
from autoddl.search import pareto_elimination
from autoddl.search.budget import Budget, Progress, TooMany
from autoddl.search.dominance import prune
from autoddl.search.elimination import eliminate
from autoddl.search.elimination_order import without_fixed_cycles
from autoddl.search.exact import prove
from autoddl.search.lagrangian import Dual, approach, may_fit
from autoddl.search.local_search import crossover, prefix_totals
from autoddl.search.pareto_elimination import least_within
from autoddl.search.problem import Edge, Problem, relative_gap
from autoddl.search.reduced_costs import ReducedCosts, Restricted
from tests.search.brute_force import SHAPES, optimum, random_problem

SERIES_PARALLEL = ["chain", "residual", "forest"]


def all_choices(problem):
    return [np.array(c) for c in itertools.product(*map(range, problem.sizes()))]


def blocks(rng, count):
    """A residual network of equal blocks, as deep models have."""
    edges = []
    for block in range(count):
        fork, inner, after = 2 * block, 2 * block + 1, 2 * block + 2
        edges += [Edge(fork, inner, 0), Edge(fork, after, 1), Edge(inner, after, 2)]
    shapes = [(2, 3), (2, 2), (3, 2)]
    return Problem(
        (rng.random(2), rng.random(3)),
        (rng.random(2), rng.random(3)),
        tuple(rng.random(shape) for shape in shapes),
        tuple(rng.random(shape) * 0.2 for shape in shapes),
        (*([0, 1] * count), 0),
        tuple(edges),
    )


@pytest.mark.parametrize("shape", SERIES_PARALLEL)
def test_through_an_entry_is_the_least_score_of_the_choices_that_use_it(shape):
    for seed in range(6):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        state = eliminate(problem, 0.5, frozenset())
        contexts = ReducedCosts(state)
        scores = [(c, np.dot(problem.evaluate(c), (1, 0.5))) for c in all_choices(problem)]
        of_nodes = ReducedCosts(state, nodes_only=True)
        for table in range(len(problem.node_cost)):
            through = contexts.through(table)
            np.testing.assert_allclose(of_nodes.through(table), through, rtol=1e-6)
            for strategy in range(len(through)):
                expected = min(
                    score
                    for choice, score in scores
                    if any(
                        t == table and choice[v] == strategy for v, t in enumerate(problem.nodes)
                    )
                )
                assert through[strategy] == pytest.approx(expected, rel=1e-6)
        for number, table in enumerate(problem.edge_cost):
            through = contexts.through(len(problem.node_cost) + number)
            used = [e for e in problem.edges if e.table == number]
            for entry in np.ndindex(table.shape):
                expected = min(
                    score
                    for choice, score in scores
                    if any((choice[e.first], choice[e.second]) == entry for e in used)
                )
                assert through[entry] == pytest.approx(expected, rel=1e-6)


def limited(free):
    """The problem under limits between the least memory and that of the cheapest choice."""
    _, least = optimum(free)
    cheapest = min(all_choices(free), key=lambda c: free.evaluate(c)[0])
    most = free.evaluate(cheapest)[1]
    for part in (0.05, 0.3, 0.6, 0.9):
        yield dataclasses.replace(free, memory_limit=least + part * (most - least) + 1e-9)


def problems(seeds=5):
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for shape in SERIES_PARALLEL:
            yield from limited(random_problem(rng, 5, SHAPES[shape]))
        yield from limited(blocks(rng, 3))


def test_fronts_find_the_optimum_within_the_limit():
    for problem in problems(3):
        best, _ = optimum(problem)
        for price in (0.0, 1.0):
            state = eliminate(problem, price, frozenset())
            contexts = ReducedCosts(state)
            found = least_within(problem, state, contexts, price, best * 1.1 + 1e-9, 10**6)
            assert found.choice is not None
            cost, memory = problem.evaluate(found.choice)
            assert memory <= problem.memory_limit * (1 + 1e-12)
            assert cost == pytest.approx(best)
            none = least_within(problem, state, contexts, price, best * 0.99, 10**6)
            assert none.choice is None
    last = list(problems(3))[-1]
    state = eliminate(last, 0.0, frozenset())
    with pytest.raises(TooMany):
        least_within(last, state, ReducedCosts(state), 0.0, np.inf, 10)


def test_fronts_lose_no_more_than_they_may(monkeypatch):
    monkeypatch.setattr(pareto_elimination, "_LONG", 3)
    lost = 0
    for problem in problems():
        best, _ = optimum(problem)
        state = eliminate(problem, 1.0, frozenset())
        loss = 0.2 * best
        found = least_within(problem, state, ReducedCosts(state), 1.0, best + 2 * loss, 10**6, loss)
        assert found.choice is not None
        cost, memory = problem.evaluate(found.choice)
        assert memory <= problem.memory_limit * (1 + 1e-12)
        assert best - 1e-9 <= cost <= best + loss + 1e-9
        lost += cost > best + 1e-9
    assert lost > 0


def test_what_dominated_strategies_leave_has_the_same_optimum():
    went = 0
    for problem in problems():
        kept = prune(problem)
        went += sum(map(len, problem.node_cost)) - sum(map(len, kept))
        assert optimum(problem.restricted(kept))[0] == pytest.approx(optimum(problem)[0])
    assert went > 0


@pytest.mark.parametrize(("quick", "long"), [(3, 0), (300, 10**6), (None, None)])
def test_the_optimum_within_memory_is_proven(monkeypatch, quick, long):
    """Also with short sets and long ones."""
    ways = []

    def noted(problem):
        ways.append(problem)
        return without_fixed_cycles(problem)

    monkeypatch.setattr(exact_search, "without_fixed_cycles", noted)
    if quick is not None:
        monkeypatch.setattr(exact_search, "_QUICK_WORK", quick)
        monkeypatch.setattr(exact_search, "_LONG", long)
    for problem in problems(3):
        best, _ = optimum(problem)
        with Progress(problem, Budget()) as run:
            prove(problem, run)
        assert run.cost == pytest.approx(best)
        assert relative_gap(run.cost, run.bound) == 0
        assert run.bound <= best + 1e-9
    assert quick is None or bool(ways) == (quick == 3)


def test_crossovers_cost_what_their_totals_say():
    rng = np.random.default_rng(4)
    free = blocks(rng, 4)
    head, tail = (np.array([rng.integers(n) for n in free.sizes()]) for _ in range(2))
    cost, memory = prefix_totals(free, head, tail)
    every = [np.concatenate([head[:k], tail[k:]]) for k in range(free.num_variables + 1)]
    assert [free.evaluate(c) for c in every] == [
        pytest.approx(pair) for pair in zip(cost, memory, strict=True)
    ]
    problem = dataclasses.replace(free, memory_limit=float(np.median(memory)))
    joined = crossover(problem, head, tail)
    assert joined is not None
    assert problem.evaluate(joined)[1] <= problem.memory_limit
    assert crossover(dataclasses.replace(free, memory_limit=0.0), head, tail) is None


@pytest.mark.parametrize("shape", SERIES_PARALLEL)
def test_approaching_the_limit_tells_what_the_cheapest_choice_costs_without_it(shape):
    """By it, the planner sees whether more micro-batches may be faster."""
    for seed in range(6):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        pairs = [problem.evaluate(choice) for choice in all_choices(problem)]
        cost, memory = min(pairs)
        tight = dataclasses.replace(problem, memory_limit=0.9 * memory)
        with Progress(tight, Budget()) as run:
            approach(Restricted.of(tight), run, 0.01)
        assert run.free_cost == pytest.approx(cost)
        assert run.best is None or run.memory <= tight.memory_limit


@pytest.mark.parametrize("seed", range(20))
def test_whether_anything_fits_is_exact_and_soon_known_where_the_smallest_strategies_do(
    seed, monkeypatch
):
    problem = random_problem(np.random.default_rng(seed), len(SHAPES["chain"]) + 1, SHAPES["chain"])
    choices = itertools.product(*map(range, problem.sizes()))
    sizes = [problem.evaluate(np.array(choice))[1] for choice in choices]
    for limit, fits in ((min(sizes) * 1.001, True), (min(sizes) * 0.999, False)):
        assert may_fit(dataclasses.replace(problem, memory_limit=limit)) == fits
    monkeypatch.setattr(exact_search, "eliminate", None)
    assert may_fit(dataclasses.replace(problem, memory_limit=max(sizes)))


def test_no_ceiling_is_tried_again_that_was_too_high(monkeypatch):
    tried: list[float] = []

    def search_below(ceiling: float, *_: object) -> None:
        tried.append(ceiling)
        if len(tried) != 2:
            raise TooMany

    monkeypatch.setattr(exact_search, "_search_below", search_below)
    view: Any = SimpleNamespace(below=lambda *_: None)
    run: Any = SimpleNamespace(bound=7.7, to_beat=8.9, cost=8.9, is_done=False)
    run.raise_bound = lambda _: None
    with pytest.raises(TooMany):
        exact_search._merge(view, run, Dual(0.0, 7.7))
    first, lower = tried
    assert lower < first
