"""A problem with some strategies of each node table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .eliminate import Elimination, eliminate
from .marginals import Contexts
from .problem import Choice, Problem
from .prune import prune_tables


@dataclass
class View:
    """The problem with the strategies `kept` of each node table.

    price: of memory that may be about the best one, if it is not 0
    """

    whole: Problem
    kept: list[NDArray[np.int64]]
    price: float = 0.0

    def __post_init__(self) -> None:
        self.problem = self.whole.restricted(self.kept)
        self._last: tuple[float, Elimination] | None = None

    @staticmethod
    def of(problem: Problem) -> View:
        """With all strategies."""
        return View(problem, [np.arange(len(cost)) for cost in problem.node_cost])

    @property
    def size(self) -> int:
        return sum(map(len, self.kept))

    def eliminated(self, price: float) -> Elimination:
        if self._last is None or self._last[0] != price:
            self._last = price, eliminate(self.problem, price, frozenset())
            self._contexts: Contexts | None = None
        return self._last[1]

    def contexts(self, price: float) -> Contexts:
        state = self.eliminated(price)
        if self._contexts is None:
            self._contexts = Contexts(state)
        return self._contexts

    def some(self, masks: Sequence[NDArray[np.bool_]]) -> View:
        kept = [numbers[mask] for numbers, mask in zip(self.kept, masks, strict=True)]
        return View(self.whole, kept, self.price)

    def undominated(self) -> View:
        """The same optimum."""
        stay = prune_tables(self.problem)
        kept = [numbers[own] for numbers, own in zip(self.kept, stay, strict=True)]
        return View(self.whole, kept, self.price)

    def original(self, choice: Choice) -> Choice:
        return np.array(
            [self.kept[t][s] for t, s in zip(self.whole.nodes, choice, strict=True)],
            dtype=np.int64,
        )
