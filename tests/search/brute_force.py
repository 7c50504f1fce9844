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


def k_tree(rng: np.random.Generator, variables: int, width: int) -> list[tuple[int, int]]:
    """Edges of a random graph of that tree-width: each new variable joins a clique of `width`."""
    edges = [(a, b) for b in range(width + 1) for a in range(b)]
    cliques = [tuple(v for v in range(width + 1) if v != out) for out in range(width + 1)]
    for new in range(width + 1, variables):
        clique = cliques[rng.integers(len(cliques))]
        edges += [(old, new) for old in clique]
        cliques += [(*(v for v in clique if v != out), new) for out in clique]
    return edges


def priced(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All choices, their costs and their memories."""
    choices = np.array(list(itertools.product(*map(range, problem.sizes()))))
    cost, memory = np.zeros(len(choices)), np.zeros(len(choices))
    for variable, table in enumerate(problem.nodes):
        cost += problem.node_cost[table][choices[:, variable]]
        memory += problem.node_memory[table][choices[:, variable]]
    for first, second, table in problem.edges:
        at = choices[:, first], choices[:, second]
        cost += problem.edge_cost[table][at]
        memory += problem.edge_memory[table][at]
    return choices, cost, memory


def optimum(problem: Problem) -> tuple[float, float]:
    """(least cost within the limit, least memory of all); inf if nothing fits."""
    _, cost, memory = priced(problem)
    return float(cost.min(where=memory <= problem.memory_limit, initial=np.inf)), memory.min()


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
