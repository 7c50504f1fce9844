"""One coordinate descent under the hard memory limit, from a given start."""

from __future__ import annotations

import numpy as np

from .problem import Choice, Problem


def descend(problem: Problem, start: Choice, max_sweeps: int = 50) -> tuple[Choice, int]:
    """From `start` down to a fixed point under the hard memory limit; (choice, line searches)."""
    choice = start.copy()
    memory = problem.evaluate(choice)[1]
    searches = 0
    for _ in range(max_sweeps):
        changed = False
        for variable, table in enumerate(problem.nodes):
            cost = problem.node_cost[table].copy()
            mem = problem.node_memory[table].copy()
            for other, edge, is_first in problem.neighbours[variable]:
                at = choice[other]
                if is_first:
                    cost += problem.edge_cost[edge][:, at]
                    mem += problem.edge_memory[edge][:, at]
                else:
                    cost += problem.edge_cost[edge][at]
                    mem += problem.edge_memory[edge][at]
            searches += 1
            now = choice[variable]
            total = memory + (mem - mem[now])
            allowed = total <= max(problem.memory_limit, 0.0)
            if allowed.any():
                best = int(np.argmin(np.where(allowed, cost, np.inf)))
                better = cost[best] < cost[now] * (1 - 1e-12) or not allowed[now]
            else:
                best = int(np.argmin(mem))
                better = mem[best] < mem[now]
            if better and best != now:
                memory += float(mem[best] - mem[now])
                choice[variable] = best
                changed = True
        if not changed:
            break
    return choice, searches
