"""How long a search may run, and the state of one that does.

    with Progress(problem, budget) as run:
        ...
        run.spend()          # before each evaluation; leaves the block when the budget is used up
        run.offer(choice)
        run.raise_bound(bound)
    return run.result("name")

The block also ends on KeyboardInterrupt if there is a best choice to return. So every search can be
stopped at any time, whatever depth it is at.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol

from .problem import Choice, CurvePoint, Problem, SearchEnd, SearchResult, relative_gap

_LEAST_S = 1e-6  # that a search gets: some plan is found all the same
# Choices that are remembered, as one of them may fit where the best one's fullest moment does not.
# With none, DLRM with 8 tables of 100,000 rows takes 1.86 times as long in 459 MB on 2x2 devices.
_EARLIER = 2
# Of the seconds that are left, for the first of two parts: the plan without hints, the plan on one
# mesh, or the cuts into stages. A quarter and three quarters gave the same plans of GPT-0.35B in
# four stages and of VGG13 in as many as pay, within a second.
FIRST_PART = 0.5


class TooMany(Exception):
    """More pairs of strategies, or of cost and memory, than may be looked at."""


class Spent(Protocol):
    """A search or a part of one."""

    @property
    def evaluations(self) -> int: ...

    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Budget:
    """seconds, evaluations: no choice (or line search) is priced after so many.

    gap:      relative gap between the best choice and the lower bound at which a search may end
    long_gap: the same where closing the rest takes long; what is less than `gap` does not count;
              inf: some choice that fits is enough

    A search whose budget ends returns the best choice so far. `seconds` makes the result depend on
    the machine; without it equal seeds give equal results.
    """

    seconds: float = math.inf
    evaluations: float = math.inf
    gap: float = 0.0
    long_gap: float = 0.0

    def __post_init__(self) -> None:
        if not self.evaluations >= 1:
            raise ValueError(f"a search needs at least one evaluation, got {self.evaluations}")
        if not self.seconds > 0:
            raise ValueError(f"a search needs more than {self.seconds} seconds")
        if not 0 <= self.gap < math.inf:
            raise ValueError(
                "the gap that a search may leave is at least 0, such as 0.01 for 1 %, "
                f"got {self.gap}"
            )

    def less(self, spent: Sequence[Spent]) -> Budget:
        """What is left after searches that took so much."""
        return replace(
            self,
            evaluations=max(1.0, self.evaluations - sum(s.evaluations for s in spent)),
            seconds=max(_LEAST_S, self.seconds - sum(s.seconds for s in spent)),
        )

    @property
    def is_finite(self) -> bool:
        """Whether evaluations or seconds are limited."""
        return math.isfinite(self.evaluations) or math.isfinite(self.seconds)


@dataclass
class Deadline:
    """When planning in parts is to end, after a budget of seconds, or at once after Ctrl-C.

    seconds: from when it `started`; 0 once Ctrl-C was pressed
    """

    seconds: float
    started: float = field(default_factory=time.perf_counter)

    @staticmethod
    def after(seconds: float | None) -> Deadline:
        """A deadline so many seconds from now; None for no end."""
        return Deadline(math.inf if seconds is None else seconds)

    @property
    def left_s(self) -> float:
        """Seconds until then, at least some."""
        return max(_LEAST_S, self.started + self.seconds - time.perf_counter())

    @property
    def is_over(self) -> bool:
        return self.left_s == _LEAST_S

    def part(self, share: float) -> Deadline:
        """A deadline after this share of the time that is left."""
        return Deadline(self.left_s * share)

    def budget_s(self, share: float) -> float | None:
        """This share of the seconds that are left; None without an end."""
        return None if self.seconds == math.inf else max(_LEAST_S, self.left_s * share)

    def follow(self, other: Deadline, ends: bool) -> None:
        """Be when `other` is; never, unless it `ends`."""
        self.started, self.seconds = other.started, other.seconds if ends else math.inf

    def end(self) -> None:
        """Nothing more is looked for, as after Ctrl-C."""
        self.seconds = 0.0

    @property
    def was_ended(self) -> bool:
        return self.seconds == 0.0


class Ended(Exception):
    """The budget is used up; `Progress` catches it."""


@dataclass
class Progress:
    """cost, memory: of `best`; free_cost: of the cheapest choice offered, memory ignored.

    bound:   no choice within the limits costs less, as far as is proven
    earlier: the last choices that were the best, the latest first
    """

    problem: Problem
    budget: Budget
    best: Choice | None = None
    cost: float = math.inf
    memory: float = math.inf
    free_cost: float = math.inf
    bound: float = -math.inf
    evaluations: int = 0
    end: SearchEnd = "done"
    curve: list[CurvePoint] = field(default_factory=list)
    earlier: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        self._started = time.perf_counter()

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
        return time.perf_counter() - self._started

    @property
    def remaining(self) -> Budget:
        """What is left, at least one evaluation, for a search inside this one."""
        return self.budget.less([self])

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
        if self.best is not None:
            self.earlier = (self.best, *self.earlier)[:_EARLIER]
        self.best, self.cost, self.memory = choice.copy(), cost, memory
        self.curve.append(CurvePoint(self.evaluations, self.seconds, cost))
        return True

    @property
    def to_beat(self) -> float:
        """A choice that costs as much is not worth looking for: the best one's gap is allowed."""
        return min(self.cost, self.problem.known_cost) / (1 + self.budget.gap)

    def raise_bound(self, bound: float) -> None:
        """No choice within the limits costs less than `bound`."""
        self.bound = max(self.bound, bound)

    def is_good(self, gap: float | None = None, bound: float = -math.inf) -> bool:
        """Whether the best so far is within `gap` (None: the budget's) of what is proven.

        bound: one that holds, too, of all choices that could be better
        """
        if self.best is None:
            return False
        allowed = self.budget.gap if gap is None else gap
        bound = max(self.bound, self.problem.known_bound, bound)
        return relative_gap(self.cost / (1 + allowed), bound) == 0.0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be found: the best is good enough, or none can be of use."""
        return self.bound >= self.problem.cost_limit or self.is_good()

    def result(self, algorithm: str) -> SearchResult | None:
        """The best so far; None if there is none."""
        if self.best is None:
            return None
        return SearchResult(
            self.best,
            self.cost,
            self.memory,
            self.evaluations,
            algorithm,
            min(self.bound, self.cost),
            self.free_cost,
            tuple(self.curve),
            self.end,
            self.seconds,
            self.earlier,
        )
