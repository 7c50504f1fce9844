"""The state of one running search: what it spent, its best choice so far, and the curve of both.

    with Progress(problem, budget) as run:
        ...
        run.spend()          # before each evaluation; leaves the block when the budget is used up
        run.offer(choice)
    return run.result("name")

The block also ends on KeyboardInterrupt if there is a best choice to return. So every search can be
stopped at any time, whatever depth it is at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import TracebackType

from .budget import Budget
from .gap import relative_gap
from .problem import Choice, CurvePoint, Problem, SearchEnd, SearchResult

_EARLIER = 2  # choices that are remembered


class Ended(Exception):
    """The budget is used up; `Progress` catches it."""


@dataclass
class Progress:
    """cost, memory: of `best`; free_cost: of the cheapest choice offered, memory ignored.

    earlier: the last choices that were the best, the latest first
    """

    problem: Problem
    budget: Budget
    best: Choice | None = None
    cost: float = math.inf
    memory: float = math.inf
    free_cost: float = math.inf
    evaluations: int = 0
    end: SearchEnd = "done"
    curve: list[CurvePoint] = field(default_factory=list)
    earlier: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        self._started = self.budget.clock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(error, Ended):
            self.end = "budget"
            return True
        if isinstance(error, KeyboardInterrupt) and self.best is not None:
            self.end = "interrupted"
            return True
        return False

    @property
    def seconds(self) -> float:
        """Since the search began."""
        return self.budget.clock() - self._started

    @property
    def remaining(self) -> Budget:
        """What is left, at least one evaluation, for a search inside this one."""
        return self.budget.less([self], self.budget.beat_s)

    def check(self) -> None:
        """Raises Ended if the budget is used up."""
        self.spend(0)

    def spend(self, evaluations: int = 1) -> None:
        """Count evaluations about to be made. Raises Ended if the budget does not allow them."""
        if self.evaluations + evaluations > self.budget.evaluations:
            raise Ended
        if self.budget.seconds < math.inf and self.seconds > self.budget.seconds:
            raise Ended
        self.evaluations += evaluations

    def offer(self, choice: Choice) -> bool:
        """Keep `choice` if it fits and is the best so far; whether it was kept."""
        return self.offer_priced(choice, *self.problem.evaluate(choice))

    def offer_priced(self, choice: Choice, cost: float, memory: float) -> bool:
        """`offer` of a choice whose cost and memory are known to `problem.evaluate`'s accuracy."""
        self.free_cost = min(self.free_cost, cost)
        if not (memory <= self.problem.memory_limit and cost < self.cost):
            return False
        self._remember(())
        self.best, self.cost, self.memory = choice.copy(), cost, memory
        self.curve.append(CurvePoint(self.evaluations, self.seconds, cost))
        return True

    def _remember(self, later: tuple[Choice, ...]) -> None:
        """The best so far is no longer, as were, in another search, the choices `later`."""
        best = () if self.best is None else (self.best,)
        self.earlier = (*later, *best, *self.earlier)[:_EARLIER]

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.evaluations >= self.budget.evaluations or self.seconds > self.budget.seconds

    @property
    def to_beat(self) -> float:
        """A choice that costs as much is not worth looking for: the best one's gap is allowed."""
        return self.cost / (1 + self.budget.gap)

    def is_good(self, bound: float, gap: float | None = None) -> bool:
        """Whether the best so far is good enough, as no choice costs less than `bound`.

        gap: at which it is; None: the budget's
        """
        if self.best is None:
            return False
        if self.cost <= self.budget.enough_s:
            return True
        allowed = self.budget.gap if gap is None else gap
        return relative_gap(self.cost / (1 + allowed), bound) == 0.0

    def adopt(self, inner: Progress) -> None:
        """Count the work of a search within this one, and take over its best choice."""
        started = inner._started - self._started
        for point in inner.curve:
            if point.cost < self.cost:
                self.curve.append(
                    CurvePoint(
                        self.evaluations + point.evaluations, started + point.seconds, point.cost
                    )
                )
        self.evaluations += inner.evaluations
        self.free_cost = min(self.free_cost, inner.free_cost)
        if inner.best is not None and inner.cost < self.cost:
            self._remember(inner.earlier)
            self.best, self.cost, self.memory = inner.best, inner.cost, inner.memory

    def result(
        self, algorithm: str, lower_bound: float = -math.inf, free_cost: float | None = None
    ) -> SearchResult | None:
        """The best so far; None if there is none."""
        if self.best is None:
            return None
        return SearchResult(
            self.best,
            self.cost,
            self.memory,
            self.evaluations,
            algorithm,
            min(lower_bound, self.cost),
            self.free_cost if free_cost is None else free_cost,
            tuple(self.curve),
            self.end,
            self.seconds,
            self.earlier,
        )
