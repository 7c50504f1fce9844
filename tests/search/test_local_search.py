"""A descent that knows equal lines takes the same steps as one that prices each of them."""

import dataclasses

import numpy as np

from autoddl.search.local_search import descend
from autoddl.search.problem import Edge, Problem


def blocks(rng, count):
    """A chain of blocks that share two node tables and three edge tables; each has a cycle."""
    sizes = 5, 4
    edges = []
    for first in range(0, 2 * count, 2):
        edges.append(Edge(first, first + 1, 0))
        if first + 2 < 2 * count:
            edges += [Edge(first, first + 2, 1), Edge(first + 1, first + 2, 2)]
    shapes = [(sizes[0], sizes[1]), (sizes[0], sizes[0]), (sizes[1], sizes[0])]
    tables = [
        [np.round(rng.random(shape), 1) for shape in shapes_of]
        for shapes_of in (sizes, sizes, shapes, shapes)
    ]
    return Problem(*map(tuple, tables), nodes=(0, 1) * count, edges=tuple(edges))


def descend_plainly(problem, start, max_sweeps=50):
    choice, memory, searches = start.copy(), problem.evaluate(start)[1], 0
    for _ in range(max_sweeps):
        before = choice.copy()
        for variable in range(problem.num_variables):
            cost, own = problem.line(choice, variable)
            searches += 1
            now = choice[variable]
            allowed = memory + (own - own[now]) <= max(problem.memory_limit, 0.0)
            if allowed.any():
                best = int(np.argmin(np.where(allowed, cost, np.inf)))
                better = cost[best] < cost[now] * (1 - 1e-12) or not allowed[now]
            else:
                best = int(np.argmin(own))
                better = own[best] < own[now]
            if better and best != now:
                memory += float(own[best] - own[now])
                choice[variable] = best
        if np.array_equal(before, choice):
            break
    return choice, searches


def test_a_descent_takes_the_steps_of_one_that_prices_every_line():
    rng = np.random.default_rng(0)
    for _ in range(60):
        problem = blocks(rng, int(rng.integers(1, 8)))
        sizes = problem.sizes()
        lowest, highest = problem.least()[1], problem.num_variables
        for share in (-0.1, 0.0, 0.2, 0.5, 2.0, np.inf):
            limit = lowest + share * highest
            limited = dataclasses.replace(problem, memory_limit=limit)
            start = np.array([rng.integers(size) for size in sizes])
            calls = []
            choice, searches = descend(limited, start, spend=lambda calls=calls: calls.append(1))
            expected, count = descend_plainly(limited, start)
            assert choice.tolist() == expected.tolist()
            assert searches == count == len(calls)
