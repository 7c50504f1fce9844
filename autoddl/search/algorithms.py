"""The table of search algorithms: plain functions (problem, rng, budget) -> result or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .auto import auto
from .budget import Budget
from .exact import exact
from .heuristics.coordinate_descent import coordinate_descent
from .heuristics.exhaustive import exhaustive
from .heuristics.metropolis_hastings import metropolis_hastings
from .heuristics.random_choice import random_choice
from .integer import integer
from .problem import Problem, SearchResult

Algorithm = Callable[[Problem, np.random.Generator, Budget], SearchResult | None]

ALGORITHMS: Mapping[str, Algorithm] = {
    "auto": auto,
    "coordinate_descent": coordinate_descent,
    "exact": exact,
    "exhaustive": exhaustive,
    "integer": integer,
    "metropolis_hastings": metropolis_hastings,
    "random": random_choice,
}


def find_algorithm(name: str) -> Algorithm:
    """Raises ValueError naming the known algorithms."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise ValueError(
            f"unknown search algorithm {name!r}; known: {', '.join(ALGORITHMS)}"
        ) from None
