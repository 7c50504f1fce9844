import numpy as np

from tests.search.brute_force import RESIDUAL, random_problem


def test_a_choice_costs_the_same_however_often_and_late_it_is_asked_for():
    rng = np.random.default_rng(0)
    problem = random_problem(rng, 5, RESIDUAL)
    choices = [np.array([rng.integers(size) for size in problem.sizes()]) for _ in range(9)]
    choice = choices[0].copy()
    for number in [*range(9), 8, 7, 0, 0, 8]:
        choice[:] = choices[number]
        costs, memories = problem.terms(choice, choice, choice)
        assert problem.evaluate(choice) == (np.cumsum(costs)[-1], np.cumsum(memories)[-1])
