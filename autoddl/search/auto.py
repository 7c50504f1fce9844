"""The default search: `exact`, but for how long it may take where a proof is hard.

Where elimination and messages leave a gap, the integer program is solved only if it is small,
unless a gap was asked for: then it is worked on until the gap is reached or the budget ends. The
result's `algorithm` says what found the choice.
"""

from __future__ import annotations

import math

import numpy as np

from .budget import Budget, Progress
from .elimination import eliminate
from .exact import MOST_COLUMNS, prove
from .problem import Problem, SearchResult

_PROGRAM_COLUMNS = 3_000
_PROGRAM_NODES = 100  # of the solver's tree


def auto(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """None if no choice fits the memory limit (or none was found within the budget)."""
    is_asked = budget.gap > 0.0
    columns = MOST_COLUMNS if is_asked else _PROGRAM_COLUMNS
    name = "elimination"
    with Progress(problem, budget) as run:
        name = prove(problem, run, columns, math.inf if is_asked else _PROGRAM_NODES)
    if run.best is None and run.end == "budget":  # it was too small for any other choice
        run.offer(eliminate(problem, math.inf, frozenset()).expand_greedily())
    return run.result(name)
