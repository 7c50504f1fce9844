"""A search with one number of micro-batches and certain blocks run again, fitted into memory.

The search adds bytes up; what a plan holds at its fullest moment is known when it is written down
(`realize`). Where that exceeds the limit, the search's limit is lowered by the excess and its
result repaired or found anew, so no plan exceeds it; where that costs much time, limits in between
are tried. The search is among the strategies that a lower bound leaves (`coarse_to_fine`), and what
that rules out is ruled out for certain.

`FittedSearch.plan` returns the result.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..graph.regions import Blocks
from ..plans.figures import figures
from ..plans.plan import Plan
from ..search.algorithms import RESTARTS, Algorithm
from ..search.budget import Budget, Progress
from ..search.lagrangian import approach
from ..search.local_search import descend
from ..search.problem import ROUNDING, Problem, SearchResult
from ..search.reduced_costs import Restricted
from .coarse_to_fine import CLOSE, FIRST_SLACK, ClassBounds
from .estimate import Estimator
from .realize import Candidate
from .tables.tables import Few, TableBuilder, Tables

# Half and twice the narrowings, loosenings and repair, and 0.5 and 1 of the excess, gave the
# same plans of VGG13 on 64, GPT-36B on 256 and GPT-0.35B on 2x16 devices, in times within noise.
_NARROWINGS = 8  # times that the limit is lowered
# Of a plan that is wanted soon. With 2, GPT-36B on 256 devices of 20 GB failed in 2 and 4
# micro-batches for 0.6 % of them, took twice the time and gave a plan 10 % slower.
_FEW_NARROWINGS = 3
_FULL = 0.75  # of the memory: other shares of hosts may make room for faster strategies
_LOOSENINGS = 5  # times that a limit in between is tried
# Strategies of all variables: a search takes a fraction of a second. Without, and with twice as
# many, GPT-0.35B on 2x16 has the same plan, as fast.
_QUICK = 5_000
_REPAIR = 0.005  # more seconds than without lowering the limit: not worth a search
# Of the seconds: so much must a limit in between promise. With all tries GPT-3 175B on 512 fast and
# 512 slow devices has the same plan, and its search takes 2.4 times as long.
_WORTH = 5e-4
# Gap of a rough search. Half and twice of it gave the same plan of GPT-36B on 256 within a second,
# in 1.06 of the time; 0 one that is 0.0007 % faster, in 1.11 of it.
_ROUGH = 0.01
# Strategies of a group in a rough search. With all 450 a first plan takes 1.3 to 1.4 times as long
# for GPT-3 175B on 128x8, GPTs of 64 blocks on 64x4 and PVT-large on 2x8, and is up to 1 % better;
# with 100 that of 175B is 10 % slower, and on 1024x8 3.8 times as slow.
_ROUGH_CAP = 225
_LEAST_S = 1e-6  # that a search gets
# Gap of a thorough search. 1e-5 and 1e-3, and 0.05 and 0.3 of the gap for the bounds, gave the same
# plans of GPT-0.35B on 2x16, VGG13 on 64 and ViT-S in 0.4 GB on 2x8, in times within noise.
_THOROUGH = 1e-4
_BOUNDS_SHARE = 0.1  # of the gap: so far may the bounds stay below their best

Searched = tuple[Tables, SearchResult]
Lowered = Callable[[Tables, SearchResult, float], "Searched | None"]  # to a limit


@dataclass
class FittedSearch:
    """The searches for one plan; they share a budget.

    estimator: whose graphs, model, space, prices and bounds are searched
    budget: its gap is that of a plan among the strategies of its micro-batches and blocks, too; its
            seconds count from when the planning `started`, whatever they are spent on
    is_rough: some plan that fits is wanted soon, not the best
    most_slack: strategies are left out whose bound is so much above the least, if a plan is found
                without them; it is proven best among the others alone
    """

    estimator: Estimator
    algorithm: Algorithm
    budget: Budget
    seed: int
    restarts: int = RESTARTS
    results: list[SearchResult] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    is_rough: bool = False
    most_slack: float = math.inf
    _last: Candidate | None = field(default=None, init=False, repr=False)

    def plan(self, parts: int, beat_s: float, blocks: Blocks) -> Candidate | None:
        """The best plan found that fits; of a rough search with a bound of computation alone.

        Raises NoStrategy if so small a micro-batch cannot be divided as the space asks.
        """
        estimator = self.estimator
        if self.is_rough and estimator.few is not None:
            found = self._soon(estimator.builder(parts, blocks), estimator.few, beat_s)
            if found is not None:
                return found
        found = self._planned(parts, beat_s, blocks)
        if found is None or not self.is_rough:
            return found
        builder = estimator.builder(parts, blocks)
        builder.prepare()
        bound = min(found.result.lower_bound, builder.computation_s)
        result = dataclasses.replace(found.result, lower_bound=bound)
        return dataclasses.replace(found, result=result).knowing(found)

    def _planned(self, parts: int, beat_s: float, blocks: Blocks) -> Candidate | None:
        """The best plan found that fits, among all strategies of the estimator's space."""
        estimator = self.estimator
        if not self.algorithm.sees_all:
            bounds = estimator.estimate(parts, blocks, beat_s).bounds
            if bounds is not None:
                return self._among_few(bounds, beat_s)
        tables = estimator.builder(parts, blocks).tables_within_limit()
        if tables is None:
            return None
        first = self.search(tables.problem, beat_s)
        if first is None or first.lower_bound >= beat_s:
            return None
        return self.within_limit(tables, first, not self.is_rough)

    def approached(self, parts: int, blocks: Blocks, near: float) -> Searched | None:
        """A good choice and a bound, soon: by prices of memory alone, with no search for the rest.

        Whether its fullest moment fits, its user finds out. NoStrategy as of `plan`.
        near: how far the bound may be from the best one of any price
        """
        estimator, bound = self.estimator, -math.inf
        tables: Tables | None
        bounds = estimator.estimate(parts, blocks).bounds
        if bounds is not None:
            bound = bounds.bound
            tables = bounds.tables(bounds.kept(FIRST_SLACK), estimator.prices)
        else:
            tables = estimator.builder(parts, blocks).tables_within_limit()
        if tables is None or bound == math.inf:
            return None
        with Progress(tables.problem, self.left) as run:
            approach(Restricted.of(tables.problem), run, near)
        result = run.result("elimination")
        if result is None:
            return None
        self.results.append(result)
        return tables, result if bounds is None else dataclasses.replace(result, lower_bound=bound)

    def _soon(self, builder: TableBuilder, few: Few, beat_s: float) -> Candidate | None:
        """A plan among few strategies, if one fits."""
        builder.prepare()
        if not builder.may_fit():
            return None
        tables = builder.among(few(builder), builder.prices).build()
        first = self.search(tables.problem, beat_s)
        if first is None or first.lower_bound >= beat_s:
            return None
        first = dataclasses.replace(first, lower_bound=builder.computation_s)
        return self.within_limit(tables, first, is_thorough=False)

    def within_limit(
        self,
        tables: Tables,
        first: SearchResult,
        is_thorough: bool = True,
        known: Candidate | None = None,
    ) -> Candidate | None:
        """The first result if its peak fits the memory, else the best one found that does.

        is_thorough: higher limits are tried again where a lower one costs much time
        known: the first result as a plan, if something has been worked out for it
        """
        self._last = known or self._last

        def lowered(tables: Tables, result: SearchResult, limit: float) -> Searched | None:
            problem = dataclasses.replace(tables.problem, memory_limit=limit)
            repaired = _repaired(problem, result, first.cost * (1 + _REPAIR))
            found = repaired or self.search(problem, math.inf)
            return found and (tables, found)

        return self._fitting((tables, first), lowered, is_thorough)

    def _among_few(self, bounds: ClassBounds, beat_s: float) -> Candidate | None:
        """A search among the strategies that the bounds leave."""
        if not self.is_rough:
            bounds = bounds.raised(beat_s, max(CLOSE, self.budget.gap * _BOUNDS_SHARE))
        searched = self._search_few(bounds, beat_s)
        if searched is None:
            return None
        gap = self.budget.gap
        if gap > _THOROUGH and not self.is_rough and self._found(*searched).excess_bytes > 0:
            # blocks are planned less alike, the earlier a search ends, and the fullest is fuller
            budget = dataclasses.replace(self.budget, gap=_THOROUGH)
            thorough = dataclasses.replace(self, budget=budget)
            searched = thorough._search_few(bounds, beat_s) or searched
        first = searched[1]

        def lowered(tables: Tables, result: SearchResult, limit: float) -> Searched | None:
            problem = dataclasses.replace(tables.problem, memory_limit=limit)
            found = _repaired(problem, result, self.enough(first.lower_bound))
            if found is None and limit < bounds.least_bytes:
                return None
            if found is None and not self._is_hard:
                found = self.search(problem, math.inf, first.lower_bound)
            if found is None:
                return self._search_few(bounds.within(limit), math.inf)
            if self.is_rough or found.cost <= first.cost * (1 + _REPAIR):
                return tables, found
            # those kept for the whole limit may not have the best within a lower one
            most_s = found.cost / (1 + max(gap, self.budget.long_gap))
            return self._search_few(bounds.within(limit, most_s), most_s) or (tables, found)

        return self._fitting(searched, lowered, not self.is_rough, beat_s)

    def _found(self, tables: Tables, result: SearchResult) -> Candidate:
        """The result as a plan; what was worked out for an equal one before is kept."""
        self._last = Candidate(tables, result, self.estimator.prices.paths).knowing(self._last)
        return self._last

    def _fitting(
        self,
        searched: Searched,
        lowered: Lowered,
        is_thorough: bool = True,
        beat_s: float = math.inf,
    ) -> Candidate | None:
        """What was searched, or the best within a lower limit whose fullest moment fits.

        Or what the search had found before, if that fits and is better.
        """
        tables, first = searched
        fits = self._narrowed(searched, lowered, is_thorough, beat_s)
        most_s = math.inf if fits is None else fits.seconds
        for choice in first.earlier if is_thorough and not first.is_stopped else ():
            cost, memory = tables.problem.evaluate(choice)
            if not first.cost < cost < most_s:
                break
            result = dataclasses.replace(first, choice=choice, cost=cost, memory=memory)
            result = self._bounded(result, first)
            before = Candidate(tables, result, self.estimator.prices.paths)
            if before.excess_bytes <= 0:
                return before
        return fits

    def _narrowed(
        self, searched: Searched, lowered: Lowered, is_thorough: bool, beat_s: float
    ) -> Candidate | None:
        """What was searched, or the best within a lower limit whose fullest moment fits.

        What does not fit lowers the limit by its excess, which another plan may not have: so where
        much time was lost, or nothing is so small, limits in between are tried; the latter only
        where that is quick, the former where straight lines between a plan that fits and one that
        does not say that there is something to gain, at the limit whose excess they call 0.
        """
        first, last, floor = searched[1], searched, 0.0
        large, over = math.inf, None
        # in less memory nothing is faster; a repaired choice may be so much slower than the best
        too_much_s = beat_s * (1 + _REPAIR)

        def found(which: Searched) -> Candidate:
            tables, result = which
            return self._found(tables, self._bounded(result, first))

        limit = self.estimator.model.limit_bytes
        for tries in range(_FEW_NARROWINGS if self.is_rough else _NARROWINGS):
            fits = found(last)
            if fits.excess_bytes <= 0:
                break
            if last[1].is_stopped or fits.seconds >= too_much_s:
                return None
            if last[1].memory < large:
                large, over = last[1].memory, fits
            limit = last[1].memory - fits.excess_bytes * (1 + tries / 2)
            if limit <= floor:
                limit = (floor + large) / 2
            smaller = lowered(*last, limit)
            if smaller is not None:
                last = smaller
            elif sum(last[0].problem.sizes()) <= _QUICK:
                floor = limit
            else:
                return None
        else:
            return None
        enough_s = max(first.cost * (1 + _REPAIR), self.enough(first.lower_bound))
        excess = fits.excess_bytes
        for _ in range(_LOOSENINGS if is_thorough else 0):
            share = 0.5 if over is None else -excess / (over.excess_bytes - excess)
            gain_s = math.inf if over is None else share * (fits.seconds - over.seconds)
            if fits.seconds <= enough_s or gain_s <= _WORTH * fits.seconds:
                break
            if over is not None and over.seconds >= too_much_s:
                break
            middle = limit + share * (large - limit)
            between = lowered(*searched, middle)
            tried = between and found(between)
            if tried is None or tried.excess_bytes > 0:
                large, over = middle, tried
                continue
            limit, excess = middle, tried.excess_bytes
            if tried.seconds < fits.seconds:
                fits = tried
        return fits

    def _bounded(self, result: SearchResult, first: SearchResult) -> SearchResult:
        """A result with the bound of the first one; its end tells if a lowered limit left a gap."""
        bound, end = min(first.lower_bound, result.cost), result.end
        enough = bound * (1 + max(self.budget.gap, self.budget.long_gap))
        if end == "done" and result.choice is not first.choice and -math.inf < enough < result.cost:
            end = "memory"
        return dataclasses.replace(result, lower_bound=bound, end=end)

    def _search_few(self, bounds: ClassBounds, beat_s: float) -> Searched | None:
        """The tables of some strategies and their best choice, bounded for all strategies."""
        if bounds.bound >= beat_s:
            return None
        slack, size, bound = FIRST_SLACK, 0, bounds.bound
        tables, result = None, None
        while True:
            ceiling, kept = bounds.ceiling(slack), bounds.kept(slack)
            every, is_last = sum(map(len, kept)) == bounds.size, slack >= self.most_slack
            if sum(map(len, kept)) > size:
                size = sum(map(len, kept))
                more = bounds.tables(kept, self.estimator.prices)
                known_s = math.inf if result is None else result.cost
                problem = dataclasses.replace(
                    more.problem, memory_limit=bounds.limit_bytes, known_cost=known_s
                )
                enough_s = beat_s if every or is_last else min(beat_s, self.enough(ceiling))
                found = self.search(problem, enough_s, bounds.bound)
                if result is None or (found is not None and found.cost < known_s):
                    tables, result = more, found
                else:  # what was found among fewer is no worse
                    least_s, end = (found.lower_bound, found.end) if found else (bound, result.end)
                    result = dataclasses.replace(result, lower_bound=min(least_s, known_s), end=end)
            if tables is None or result is None:
                if every or ceiling >= beat_s:
                    return None
                slack *= 4
                continue
            bound = result.lower_bound if every else min(result.lower_bound, ceiling)
            bound = max(bound, bounds.bound)
            if bound >= beat_s:
                return None
            wanted = result.cost / (1 + self.budget.gap)
            is_good = is_last or result.cost <= self.enough(bound)
            most_s = min(wanted, result.lower_bound * (1 + ROUNDING), beat_s)
            is_lowered = bounds.limit_bytes < self.estimator.model.limit_bytes
            is_enough = is_good or ceiling >= most_s or (is_lowered and self._is_hard)
            if every or is_enough or result.is_stopped:
                return tables, dataclasses.replace(result, lower_bound=bound)
            slack = max(2 * slack, min(wanted / bounds.bound - 1 + 1e-6, self.most_slack))

    @property
    def _is_hard(self) -> bool:
        """Whether some search was left unfinished, as its tables became too large.

        Then limits are lowered among few strategies alone, which proves nothing that is not proven
        before: ViT-S in 0.6 of its memory on 2x8 is planned in a quarter of the time.
        """
        return any(result.end == "size" for result in self.results)

    @property
    def left(self) -> Budget:
        """What is left of the budget."""
        left = self.budget.less(self.results)
        seconds = max(_LEAST_S, self.budget.seconds - (time.perf_counter() - self.started))
        return dataclasses.replace(left, seconds=seconds)

    @property
    def is_over(self) -> bool:
        """Whether no second of the budget is left."""
        return time.perf_counter() - self.started > self.budget.seconds

    def check_interrupted(self) -> None:
        """Raises KeyboardInterrupt if a search was ended by Ctrl-C, which its result kept.

        What goes on after a search asks this, so that the key is pressed once.
        """
        if any(result.end == "interrupted" for result in self.results):
            raise KeyboardInterrupt

    def rough(self) -> FittedSearch:
        """A search with a larger gap, which nothing that takes long closes, and no end of time.

        For a first plan: among fewer strategies, if it is not known among which.
        """
        gap, estimator = max(self.budget.gap, _ROUGH), self.estimator
        budget = dataclasses.replace(self.budget, seconds=math.inf, gap=gap, long_gap=math.inf)
        if estimator.few is None:
            cap = min(estimator.space.cap, _ROUGH_CAP)
            space = dataclasses.replace(estimator.space, cap=cap)
            estimator = dataclasses.replace(estimator, space=space, corrections={})
        return dataclasses.replace(self, estimator=estimator, budget=budget, is_rough=True)

    def enough(self, bound: float) -> float:
        """Seconds that are good enough, as nothing takes less than `bound`."""
        return bound * (1 + self.budget.gap)

    def search(
        self, problem: Problem, beat_s: float, known_bound: float = -math.inf
    ) -> SearchResult | None:
        """known_bound: no choice within the limit costs less."""
        rng = np.random.default_rng(self.seed)
        problem = dataclasses.replace(problem, cost_limit=beat_s, known_bound=known_bound)
        result = self.algorithm(problem, rng, self.left, self.restarts)
        self.results.extend([] if result is None else [result])
        return result


def _repaired(problem: Problem, result: SearchResult, most_s: float) -> SearchResult | None:
    """A descent from `result` to within a lowered limit, if it costs no more than `most_s`."""
    choice, _ = descend(problem, result.choice)
    found, memory = problem.evaluate(choice)
    if memory > problem.memory_limit or found > most_s:
        return None
    return dataclasses.replace(result, choice=choice, cost=found, memory=memory)


def is_full(plan: Plan) -> bool:
    """Whether a plan on one mesh may be as it is for want of memory."""
    own = figures(plan)
    return max(own.needed_bytes) > _FULL * own.limit_bytes or bool(plan.stage.recomputed)
