"""The table of search algorithms.

An algorithm is a function of arrays in a module beside this one; it is imported when it is first
called, so that the table itself costs nothing to import (the command line reads it for its help).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from .budget import Budget
    from .problem import Problem, SearchResult

# Random starts unless asked for otherwise. With 16 Metropolis-Hastings' plan of a small GPT on 2x2
# is 0.65 % slower; with 64 it is the same, in twice the time.
RESTARTS = 32


@dataclass(frozen=True)
class Algorithm:
    """A search and what may be said of it.

    function:     (problem, rng, budget), and `restarts=` if it has random starts, to a result, or
                  None if it found no choice within the limits; a string names it, as
                  "module:function" in this package
    proves_bound: its lower bounds close, so that it can keep to a gap
    has_restarts: it takes a number of random starts
    sees_all:     it is given every strategy, not only those that a lower bound leaves
    """

    function: Callable[..., SearchResult | None] | str
    proves_bound: bool = False
    has_restarts: bool = False
    sees_all: bool = False

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
        function = self.function
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(f".{module}", __package__), name)
        if self.has_restarts:
            return function(problem, rng, budget, restarts=restarts)
        return function(problem, rng, budget)


ALGORITHMS: Mapping[str, Algorithm] = {
    "auto": Algorithm("exact:auto", proves_bound=True),
    "coordinate_descent": Algorithm(
        "heuristics.coordinate_descent:coordinate_descent", has_restarts=True
    ),
    "exhaustive": Algorithm("heuristics.exhaustive:exhaustive", proves_bound=True),
    "integer": Algorithm("integer_program:integer", proves_bound=True),
    "metropolis_hastings": Algorithm(
        "heuristics.metropolis_hastings:metropolis_hastings", has_restarts=True
    ),
    # what a lower bound leaves is nearly the best, and random choices of that are no longer random
    "random": Algorithm("heuristics.random_search:random_search", has_restarts=True, sees_all=True),
}


def find_algorithm(search: str | Algorithm) -> Algorithm:
    """The algorithm of that name, or the given one. ValueError names the known ones."""
    if isinstance(search, Algorithm):
        return search
    try:
        return ALGORITHMS[search]
    except KeyError:
        raise ValueError(
            f"unknown search algorithm {search!r}; known: {', '.join(ALGORITHMS)}"
        ) from None
