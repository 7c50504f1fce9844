"""Two choices joined: the first variables as in one, the rest as in the other.

At the best price of memory a choice that fits and one that is too large score the same. Layers come
in graph order, so a choice that changes over from one to the other at layer k costs about the
average of the two in between, and some k fills the limit. `crossing` tries every k, both ways.
"""

from __future__ import annotations

import numpy as np

from .problem import Choice, Problem, Table


def prefix_totals(problem: Problem, head: Choice, tail: Choice) -> tuple[Table, Table]:
    """(cost, memory) [variables + 1] of the choices that take `head` for the first k variables."""
    size = problem.num_variables
    steps = np.zeros((2, size + 2))  # differences of the totals from k to k + 1
    tables = (
        (problem.node_cost, problem.edge_cost),
        (problem.node_memory, problem.edge_memory),
    )
    for row, (nodes, edges) in zip(steps, tables, strict=True):
        for variable, table in enumerate(problem.nodes):
            row[0] += nodes[table][tail[variable]]
            row[variable + 1] += nodes[table][head[variable]] - nodes[table][tail[variable]]
        for edge in problem.edges:
            table = edges[edge.table]
            low, high = min(edge.first, edge.second), max(edge.first, edge.second)
            mixed = [tail[edge.first], tail[edge.second]]
            mixed[0 if edge.first == low else 1] = head[low]
            both_tail = table[tail[edge.first], tail[edge.second]]
            both_head = table[head[edge.first], head[edge.second]]
            between = table[mixed[0], mixed[1]]
            row[0] += both_tail
            row[low + 1] += between - both_tail
            row[high + 1] += both_head - between
    cost, memory = np.cumsum(steps[:, : size + 1], axis=1)
    return cost, memory


def crossing(problem: Problem, first: Choice, second: Choice) -> Choice | None:
    """The cheapest joined choice that fits the memory limit; None if there is none."""
    best, found = np.inf, None
    for head, tail in ((first, second), (second, first)):
        cost, memory = prefix_totals(problem, head, tail)
        cost = np.where(memory <= problem.memory_limit * (1 - 1e-12), cost, np.inf)
        at = int(np.argmin(cost))
        if cost[at] < best:
            best, found = float(cost[at]), np.concatenate([head[:at], tail[at:]])
    return found
