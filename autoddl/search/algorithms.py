"""The table of search algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from .auto import auto
from .budget import Budget
from .exact import exact
from .heuristics.coordinate_descent import coordinate_descent
from .heuristics.exhaustive import exhaustive
from .heuristics.metropolis_hastings import metropolis_hastings
from .heuristics.random_search import random_search
from .integer_program import integer
from .problem import Problem, SearchResult

RESTARTS = 32


@dataclass(frozen=True)
class Algorithm:
    """A search and what may be said of it.

    function:     (problem, rng, budget), and `restarts=` if it has random starts, to a result, or
                  None if it found no choice within the limits
    proves_bound: its lower bounds close, so that it can keep to a gap
    has_restarts: it takes a number of random starts
    """

    function: Callable[..., SearchResult | None]
    proves_bound: bool = False
    has_restarts: bool = False

    def __call__(
        self,
        problem: Problem,
        rng: np.random.Generator,
        budget: Budget,
        restarts: int = RESTARTS,
    ) -> SearchResult | None:
        """The best choice found; ValueError if there is no random start at all."""
        if restarts < 1:
            raise ValueError(f"a search needs at least one start, got restarts={restarts}")
        if self.has_restarts:
            return self.function(problem, rng, budget, restarts=restarts)
        return self.function(problem, rng, budget)


ALGORITHMS: Mapping[str, Algorithm] = {
    "auto": Algorithm(auto, proves_bound=True, has_restarts=True),
    "coordinate_descent": Algorithm(coordinate_descent, has_restarts=True),
    "exact": Algorithm(exact, proves_bound=True),
    "exhaustive": Algorithm(exhaustive, proves_bound=True),
    "integer": Algorithm(integer, proves_bound=True),
    "metropolis_hastings": Algorithm(metropolis_hastings, has_restarts=True),
    "random": Algorithm(random_search, has_restarts=True),
}
PROVING = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.proves_bound)


def find_algorithm(name: str) -> Algorithm:
    """Raises ValueError naming the known algorithms."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise ValueError(
            f"unknown search algorithm {name!r}; known: {', '.join(ALGORITHMS)}"
        ) from None
