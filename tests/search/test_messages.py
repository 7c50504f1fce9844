"""Messages among the variables that elimination leaves, against brute force."""

import numpy as np
import pytest

from autoddl._native.library import loops
from autoddl.search import messages
from autoddl.search.elimination import eliminate
from autoddl.search.messages import Messages, solve
from autoddl.search.reduced_costs import ReducedCosts
from tests.search.brute_force import SHAPES, k_tree, priced, random_problem


def graphs():
    """Random problems of tree-width 3 to 6, some with entries that no choice may have."""
    for seed in range(24):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 7, k_tree(rng, 7, width=3 + seed % 4))
        for table in problem.edge_cost if seed % 2 else ():
            table[rng.random(table.shape) < 0.1] = np.inf
        yield problem


def test_a_sweep_never_lowers_the_bound_and_no_choice_is_below_it():
    for problem in graphs():
        least = priced(problem)[1].min()
        state = eliminate(problem, 0.0, frozenset(range(problem.num_variables)))
        among = Messages(state)
        bounds = [among.sweep() for _ in range(10)]
        assert (np.diff(bounds) > -1e-6).all() and bounds[-1] <= least + 1e-6
        assert among.score(among.choose()) >= least - 1e-12


@pytest.mark.skipif(loops() is None, reason="the loops were not compiled")
def test_compiled_sweeps_and_those_on_arrays_give_the_same_bits(monkeypatch):
    for problem in graphs():
        state = eliminate(problem, 0.0, frozenset(range(problem.num_variables)))
        compiled, arrays = Messages(state), Messages(state)
        for _ in range(4):
            bound = compiled.sweep()
            with monkeypatch.context() as patched:
                patched.setattr(messages, "loops", lambda: None)
                assert arrays.sweep() == bound
            assert compiled.through()[0] == arrays.through()[0]
            own, other = (dict(among.through()[1]) for among in (compiled, arrays))
            assert all(np.array_equal(table, other[slot]) for slot, table in own.items())


@pytest.mark.parametrize("shape", ["chain", "forest"])
def test_on_trees_the_bound_is_the_optimum(shape):
    for seed in range(10):
        problem = random_problem(np.random.default_rng(seed), 5, SHAPES[shape])
        least = priced(problem)[1].min()
        among = Messages(eliminate(problem, 0.0, frozenset(range(5))))
        assert among.sweep() == pytest.approx(least, rel=1e-6)
        assert among.score(among.choose()) == pytest.approx(least)


def test_what_is_short_is_what_another_choice_may_be_better_by():
    for problem in graphs():
        least = priced(problem)[1].min()
        found = solve(eliminate(problem, 0.0, frozenset()))
        cost = problem.evaluate(found.choice)[0]
        assert least - 1e-12 <= cost <= least + found.short + 1e-6


def test_a_gap_that_is_allowed_ends_the_sweeps_earlier():
    sweeps = {0.0: 0, 0.05: 0}
    for problem in graphs():
        least = priced(problem)[1].min()
        for gap in sweeps:
            spent: list[None] = []
            state = eliminate(problem, 0.0, frozenset())
            found = solve(state, lambda spent=spent: spent.append(None), gap)
            cost = problem.evaluate(found.choice)[0]
            assert least - 1e-12 <= cost <= least + found.short + 1e-6
            sweeps[gap] += len(spent)
    assert sweeps[0.05] < sweeps[0.0]


def test_no_choice_through_an_entry_is_below_its_bound():
    """Of every node and edge table, those of eliminated variables, too."""
    tight = 0
    for problem in graphs():
        choices, scores, _ = priced(problem)
        state = eliminate(problem, 0.0, frozenset())
        among = Messages(state) if state.node else None
        for _ in range(6):
            _ = among and among.sweep()
        reduced = ReducedCosts(state, among)
        for variable, table in enumerate(problem.nodes):
            bounds = reduced.through(table)
            for strategy in range(len(bounds)):
                least = scores[choices[:, variable] == strategy].min()
                assert bounds[strategy] <= least + 1e-6
                tight += bounds[strategy] >= least - 1e-6
        for edge in problem.edges:
            bounds = reduced.through(len(problem.node_cost) + edge.table)
            for (s, t), bound in np.ndenumerate(bounds):
                with_it = (choices[:, edge.first] == s) & (choices[:, edge.second] == t)
                assert bound <= scores[with_it].min() + 1e-6
    assert tight > 50  # of 500 or so: the others are bounds only
