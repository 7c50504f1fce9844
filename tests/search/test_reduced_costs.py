"""Two variables as one: every choice costs and holds as much as before."""

import numpy as np

from autoddl.search.reduced_costs import merge
from tests.search.brute_force import SHAPES, priced, random_problem


def test_choices_of_pairs_cost_what_both_cost():
    for shape, chosen in {
        "clique": [(0, 3)],
        "residual": [(0, 1), (2, 4)],
        "tied": [(0, 4)],
    }.items():
        for seed in range(4):
            rng = np.random.default_rng(seed)
            problem = random_problem(rng, 5, SHAPES[shape])
            sizes, pairs = problem.sizes(), {}
            for number, (first, second) in enumerate(chosen):
                rows, columns = np.nonzero(rng.random((sizes[first], sizes[second])) < 0.8)
                pairs[number] = (np.append(rows, 0), np.append(columns, 0))  # at least one
            found = merge(problem, {both: n for n, both in enumerate(chosen)}, pairs)
            choices, costs, memories = priced(found.problem)
            assert len(choices) and found.problem.num_variables == 5 - len(chosen)
            for choice, cost, memory in zip(choices, costs, memories, strict=True):
                before = np.full(5, -1)
                for variable, strategy in enumerate(choice):
                    parts = found.strategies[found.problem.nodes[variable]]
                    for member, (_, numbers) in zip(found.members[variable], parts, strict=True):
                        before[member] = numbers[strategy]
                np.testing.assert_allclose(problem.evaluate(before), (cost, memory))
