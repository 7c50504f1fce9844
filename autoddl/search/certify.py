"""A lower bound for the choice of a search that proves none.

Memory ignored, elimination gives the least cost of all choices, or, where it leaves variables over,
of all choices of the others; the least entries of the remaining tables bound the rest.
"""

from __future__ import annotations

from .eliminate import eliminate
from .gap import ROUNDING
from .problem import Problem


def free_bound(problem: Problem) -> float:
    """No choice costs less than this, whatever its memory."""
    state = eliminate(problem, 0.0, frozenset())
    bound = state.constant + sum(float(scores.min()) for scores in state.node.values())
    for variable, edges in state.edges.items():
        bound += sum(float(table.min()) for other, table in edges.items() if variable < other)
    return bound - ROUNDING * abs(bound)
