"""Random small problems and their true optimum."""

import itertools

import numpy as np

from autoddl.search.problem import Edge, Problem


def random_problem(
    rng: np.random.Generator, variables: int, edges: list[tuple[int, int]], limit: float = np.inf
) -> Problem:
    """Tables drawn from `rng`; some are shared by several variables and edges."""
    sizes = rng.integers(1, 5, size=variables)
    sizes[-1] = sizes[0]  # two variables share a node table
    nodes = [*range(variables - 1), 0]
    return Problem(
        node_cost=tuple(rng.random(sizes[v]) for v in range(variables - 1)),
        node_memory=tuple(rng.random(sizes[v]) for v in range(variables - 1)),
        edge_cost=tuple(rng.random((sizes[a], sizes[b])) for a, b in edges),
        edge_memory=tuple(rng.random((sizes[a], sizes[b])) * 0.1 for a, b in edges),
        nodes=tuple(nodes),
        edges=tuple(Edge(a, b, t) for t, (a, b) in enumerate(edges)),
        heavy=frozenset(range(0, variables, 2)),
        memory_limit=limit,
    )


def optimum(problem: Problem) -> tuple[float, float]:
    """(least cost within the limit, least memory of all); inf if nothing fits."""
    best, least = np.inf, np.inf
    for choice in itertools.product(*map(range, problem.sizes())):
        cost, memory = problem.evaluate(np.array(choice))
        least = min(least, memory)
        if memory <= problem.memory_limit:
            best = min(best, cost)
    return best, least


CHAIN = [(0, 1), (1, 2), (2, 3), (3, 4)]
RESIDUAL = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4), (0, 1)]
FOREST = [(0, 1), (2, 3)]
CLIQUE = [(a, b) for a in range(5) for b in range(a + 1, 5)]
TIED = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (0, 3)]  # 0 is a weight that layers 1, 3, 4 read
SHAPES = {
    "chain": CHAIN,
    "residual": RESIDUAL,
    "forest": FOREST,
    "clique": CLIQUE,
    "tied": TIED,
}
