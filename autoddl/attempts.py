"""Searches with several numbers of micro-batches, and with blocks that are run again.

If the smallest number of micro-batches that may fit (AutoDDL section 5.1: the largest possible
micro-batch) gives a plan that is at most `_NEAR_FREE` slower than one without a memory limit, that
is the plan. Else more micro-batches, and running all of the model's repeated blocks (`blocks`)
again, may be faster: quick looks (`look`) tell which of them are worth a search, in which order,
and the fastest plan found is the result. Where a look is a lower bound (`search.class_bounds`), the
search is among the strategies that it leaves, and what it rules out is ruled out for certain.

The search adds bytes up; what a plan holds at its fullest moment is known when it is written down
(`cost.needed`). Where that exceeds the limit, the search's limit is lowered by
the excess and its result tightened (`search.tighten`), so no plan exceeds it; where that costs
much time, limits in between are tried.

Of a plan that recomputes, as few blocks as fit are recomputed, the first ones: at the placements
found, and then by a search with these few. `Attempts.best` returns the result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from .blocks import repeated_blocks
from .cost.account import Cost, account, total
from .cost.gap import ROUNDING
from .cost.model import CostModel
from .cost.needed import needed_bytes
from .cost.recompute import Blocks, Recomputation
from .graph import Graph
from .look import Look, Looker
from .planned import PlannedEdge, PlannedOp
from .sbp.redistribute import PathTable
from .search.algorithms import Algorithm
from .search.budget import Budget
from .search.class_bounds import ClassBounds
from .search.descend import descend
from .search.group_table import NoStrategy, Space
from .search.pair_prices import PairPrices
from .search.placements import place
from .search.problem import Problem, SearchResult
from .search.symmetric import cheapest_tables
from .search.tables import Tables, build_tables, least_bytes
from .search.tighten import tighten

Checkpointing = Literal["auto", "none", "all"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("auto", "none", "all")
_NEAR_FREE = 0.05
_NARROWINGS = 8
_LOOSENINGS = 5
_QUICK = 5_000  # strategies of all variables: a search takes a fraction of a second
_REPAIR = 0.005  # more seconds than without lowering the limit: not worth a search
_REFINEMENTS = 3
_WORTH_SEARCH = 1.15  # times the cost of the best look with, or without, recomputation
_WORTH_LOOK = 1.1  # times the cost of the best look: no further look
_WORTH_FAMILY = 1.5  # times the cost of the best look of all
_WORTH_IT = 0.003  # of the cost: so much faster must another plan be able to be

Searched = tuple[Tables, SearchResult]
Lowered = Callable[[Tables, SearchResult, float], "Searched | None"]  # to a limit


@dataclass(frozen=True)
class Found:
    """A choice and the tables that it is of; `seconds` of an iteration.

    paths: of the tables' mesh and prices
    """

    tables: Tables
    result: SearchResult
    paths: PathTable

    @property
    def seconds(self) -> float:
        return self.result.cost

    @cached_property
    def placed(self) -> tuple[dict[str, PlannedOp], dict[tuple[str, int], PlannedEdge]]:
        """Placements and steps."""
        return place(self.tables, self.result.choice, self.paths)

    @cached_property
    def excess_bytes(self) -> float:
        """By how much a step's memory exceeds the limit; negative if it does not."""
        return self.excess_with(self.tables.again)

    def excess_with(self, again: Recomputation) -> float:
        """The same if other blocks are recomputed.

        The tables' memory is a sum; what a step holds at its fullest moment may be more. Of a
        stage of a pipeline only the sum is known here.
        """
        tables = self.tables
        graph, model, parts = tables.grouping.graph, tables.model, tables.micro_batches
        needed = self.result.memory
        if again.blocks or tables.again.blocks:  # of whose insides the tables count but a part
            costs = account(graph, model, parts, *self.placed, again)
            needed = total(costs.values()).memory_bytes
        if not graph.is_stage and model.limit_bytes < math.inf:
            step = graph, model.cluster.mesh, parts, model.optimizer, *self.placed, again
            needed = max(needed, needed_bytes(*step, model.limit_bytes))
        return needed - model.limit_bytes

    def is_of(self, look: Look) -> bool:
        """Whether it was searched with the same micro-batches and blocks."""
        tables = self.tables
        return (tables.micro_batches, tables.again.blocks) == (look.parts, look.blocks)

    @property
    def is_near_free(self) -> bool:
        """True if hardly anything is lost to the memory limit."""
        return self.seconds <= self.result.free_cost * (1 + _NEAR_FREE)


@dataclass
class Attempts:
    """The searches for one plan.

    micro:  number of micro-batches -> the graph of one, with forks
    counts: numbers of micro-batches to try, ascending
    proves: the algorithm finds the optimum of what it is given
    near:   relative gap that need not be closed
    """

    micro: Callable[[int], Graph]
    counts: Sequence[int]
    model: CostModel
    algorithm: Algorithm
    budget: Budget
    space: Space
    prices: PairPrices
    seed: int
    proves: bool = False
    near: float = 0.0
    results: list[SearchResult] = field(default_factory=list)
    _failed: set[tuple[int, Blocks]] = field(default_factory=set)

    def best(self, checkpointing: Checkpointing) -> Found | None:
        """None if nothing fits. ValueError if all blocks are to be recomputed and there are none"""
        if checkpointing not in CHECKPOINTING:
            known = ", ".join(CHECKPOINTING)
            raise ValueError(f"unknown checkpointing {checkpointing!r}; use one of {known}")
        if checkpointing == "all" and not self.blocks:
            raise ValueError(
                "the model has no repeated blocks that could be recomputed; use "
                "checkpointing='auto' or 'none'"
            )
        best: Found | None = None
        families: list[Blocks] = [self.blocks] if checkpointing == "all" else [()]
        if checkpointing != "all":
            first = self._first_fit(())
            if first == 0 or self._looks_near_free(first):
                best = self._attempt(self.counts[first], math.inf, ())
                if best is not None and (best.is_near_free or best.result.end != "done"):
                    return best
        if checkpointing == "auto" and self.blocks:
            families.append(self.blocks)
        looks = self._worth_search(families)
        while looks:
            beat_s = math.inf if best is None else best.seconds * (1 - _WORTH_IT)
            first = looks.pop(0)
            look = self._looker.look(first.parts, first.blocks, beat_s)
            if look.least_s >= beat_s or (best is not None and best.is_of(look)):
                continue
            if looks and look.seconds > max(first.seconds, looks[0].seconds):
                looks = sorted([look, *looks], key=lambda other: other.seconds)
                continue
            found = self._attempt(look.parts, beat_s, look.blocks)
            if found is None and best is None:
                self._failed.add((look.parts, look.blocks))
            if found is not None and found.seconds < beat_s and checkpointing == "auto":
                found = self._with_fewer(found)
            if found is not None and (best is None or found.seconds < best.seconds):
                best = found
                if found.result.end != "done":
                    return best
        if best is not None:
            return best
        found = [self._first_found(blocks) for blocks in families]
        return min(filter(None, found), key=lambda f: f.seconds, default=None)

    @cached_property
    def blocks(self) -> Blocks:
        """What can be recomputed: names are the same for every number of micro-batches."""
        return repeated_blocks(self.micro(self.counts[0]))

    @cached_property
    def _looker(self) -> Looker:
        return Looker(self.micro, self.model, self.space, self.prices)

    def _looks_near_free(self, position: int) -> bool:
        parts = self.counts[position]
        free_s = self._looker.look(parts, (), 0.0).free_s
        look = self._looker.look(parts, (), free_s * (1 + 2 * _NEAR_FREE))
        return look.seconds <= look.free_s * (1 + _NEAR_FREE) < math.inf

    def _worth_search(self, families: Sequence[Blocks]) -> list[Look]:
        """What is worth a search of the whole space, the most promising first.

        families: blocks to recompute
        """
        looks: list[Look] = []
        least = math.inf
        for blocks in sorted(families, key=len, reverse=True):
            low = self._first_fit(blocks)
            counts = self.counts[low:]
            # without recomputation memory is short: begin in the middle of what is left
            first = 0 if blocks else min((len(self.counts) - low) // 2, len(counts) - 1)
            found = self._looker.around_best(counts, first, blocks, least * _WORTH_LOOK)
            least = min(least, *(look.seconds for look in found))
            looks += found
        ordered = sorted(looks, key=lambda look: look.seconds)
        return [k for k in ordered if k.seconds < math.inf and self._is_worth(k, ordered)]

    def _is_worth(self, look: Look, others: Sequence[Look]) -> bool:
        """Bounds tell by themselves; what another look found, costs hardly far more."""
        if look.bounds is not None:
            return True
        same = min(k.seconds for k in others if k.blocks == look.blocks)
        least = min(k.seconds for k in others)
        return look.seconds <= min(same * _WORTH_SEARCH, least * _WORTH_FAMILY)

    def _first_found(self, blocks: Blocks) -> Found | None:
        """The plan of the fewest micro-batches that fit."""
        for parts in self.counts[self._first_fit(blocks) :]:
            if (parts, blocks) in self._failed:
                continue
            found = self._attempt(parts, math.inf, blocks)
            if found is not None:
                return found
        return None

    def _attempt(self, parts: int, beat_s: float, blocks: Blocks) -> Found | None:
        """A search; its limit falls until what it counts only in part fits as well."""
        graph = self.micro(parts)
        again = Recomputation(graph, blocks)
        try:
            if self.proves and not blocks and not self._looker.binds(parts):
                options = self.model, parts, self.space, self.prices, again
                cheapest = cheapest_tables(graph, *options)
                if cheapest is not None:
                    result = self._search(cheapest.problem, beat_s)
                    found = result and Found(cheapest, result, self.prices.paths)
                    if found is None or found.excess_bytes <= 0:
                        return found
            if self.proves and self._looker.has_classes:
                bounds = self._looker.look(parts, blocks, beat_s).bounds
                if bounds is not None:
                    return self._among_few(bounds, beat_s)
            tables = build_tables(graph, self.model, parts, self.space, self.prices, again)
        except NoStrategy:  # so small a micro-batch cannot be divided as the space asks
            if len(self.counts) == 1:
                raise
            return None
        if tables is None:
            return None
        first = self._search(tables.problem, beat_s)

        def lowered(tables: Tables, result: SearchResult, limit: float) -> Searched | None:
            problem = dataclasses.replace(tables.problem, memory_limit=limit)
            repaired = first and _repaired(problem, result, first.cost, _REPAIR)
            found = repaired or self._tightened(problem, result)
            return found and (tables, found)

        return None if first is None else self._fitting((tables, first), lowered)

    def _among_few(self, bounds: ClassBounds, beat_s: float) -> Found | None:
        """A search among the strategies that the bounds leave."""
        searched = self._search_few(bounds.raised(beat_s), beat_s)
        if searched is None:
            return None
        first = searched[1]

        def lowered(tables: Tables, result: SearchResult, limit: float) -> Searched | None:
            problem = dataclasses.replace(tables.problem, memory_limit=limit)
            found = _repaired(problem, result, first.cost, self.near)
            found = found or self._search(problem, math.inf)
            if found is not None and found.cost <= first.cost * (1 + _REPAIR):
                return tables, found
            return self._search_few(bounds.within(limit), math.inf)

        return self._fitting(searched, lowered)

    def _fitting(self, searched: Searched, lowered: Lowered) -> Found | None:
        """What was searched, or the best within a lower limit whose fullest moment fits.

        What does not fit lowers the limit by its excess, which another plan may not have: so where
        much time was lost, or nothing is so small, limits in between are tried; the latter only
        where that is quick.
        """
        first, large, last, floor = searched[1], math.inf, searched, 0.0

        def found(which: Searched) -> Found:
            tables, result = which
            bound = min(first.lower_bound, result.cost)
            replaced = dataclasses.replace(result, lower_bound=bound)
            return Found(tables, replaced, self.prices.paths)

        limit = self.model.limit_bytes
        for tries in range(_NARROWINGS):
            fits = found(last)
            if fits.excess_bytes <= 0:
                break
            if last[1].end != "done":
                return None
            large = min(large, last[1].memory)
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
        for _ in range(_LOOSENINGS):
            if fits.seconds <= first.cost * (1 + _REPAIR):
                break
            middle = (limit + large) / 2
            between = lowered(*searched, middle)
            tried = between and found(between)
            if tried is None or tried.excess_bytes > 0:
                large = middle
                continue
            limit = middle
            if tried.seconds < fits.seconds:
                fits = tried
        return fits

    def _search_few(self, bounds: ClassBounds, beat_s: float) -> Searched | None:
        """The tables of some strategies and their best choice, bounded for all strategies."""
        slack = bounds.first_slack()
        while bounds.bound < beat_s:
            tables = bounds.tables(slack, self.prices)
            ceiling = bounds.ceiling(slack)
            every = sum(len(table.assign) for table in tables.groups) == bounds.size
            result = self._search(
                dataclasses.replace(tables.problem, memory_limit=bounds.problem.memory_limit),
                beat_s,
            )
            if result is None:
                if every or ceiling >= beat_s:
                    return None
                slack *= 4
                continue
            bound = result.lower_bound if every else min(result.lower_bound, ceiling)
            wanted = min(result.cost, result.lower_bound * (1 + ROUNDING))
            if every or ceiling >= min(wanted, beat_s) or result.end != "done":
                return tables, dataclasses.replace(result, lower_bound=bound)
            slack = max(2 * slack, wanted / bounds.bound - 1 + 1e-6)
        return None

    def _tightened(self, problem: Problem, result: SearchResult) -> SearchResult | None:
        """A search that proves anything is tightened, another is run again."""
        if result.lower_bound == -math.inf:
            return self._search(problem, math.inf)
        found = tighten(problem, result, self.budget.less(self.results, math.inf))
        self.results.extend([] if found is None else [found])
        return found

    def _search(self, problem: Problem, beat_s: float) -> SearchResult | None:
        rng = np.random.default_rng(self.seed)
        budget = dataclasses.replace(self.budget.less(self.results, beat_s), near=self.near)
        result = self.algorithm(problem, rng, budget)
        self.results.extend([] if result is None else [result])
        return result

    def _first_fit(self, blocks: Blocks) -> int:
        """Position of the first of `counts` whose memory may fit, by bisection.

        Whether it does fit, the attempt itself finds out.
        """

        def may_fit(position: int) -> bool:
            graph = self.micro(self.counts[position])
            needed = least_bytes(graph, self.model, Recomputation(graph, blocks))
            return needed <= self.model.limit_bytes

        low, high = 0, len(self.counts)
        if high == 1 or may_fit(0):
            return 0
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if may_fit(middle) else (middle, high)
        return min(high, len(self.counts) - 1)

    def _with_fewer(self, found: Found) -> Found:
        """As few of the first blocks as fit, at the placements found and by another search."""
        for _ in range(_REFINEMENTS):
            blocks = found.tables.again.blocks
            graph = found.tables.grouping.graph
            if not blocks or found.excess_with(Recomputation(graph, blocks[:-1])) > 0:
                return found
            low, high = 0, len(blocks) - 1
            while low < high:
                middle = (low + high) // 2
                if found.excess_with(Recomputation(graph, blocks[:middle])) <= 0:
                    high = middle
                else:
                    low = middle + 1
            fewer = blocks[:high]
            searched = self._attempt(found.tables.micro_batches, math.inf, fewer)
            if searched is None:
                return found
            cost = self._cost(found, fewer)
            if cost.iteration_s < searched.seconds:
                result = dataclasses.replace(
                    found.result,
                    cost=cost.iteration_s,
                    memory=cost.memory_bytes,
                    lower_bound=searched.result.lower_bound,
                )
                cheaper = Found(searched.tables, result, self.prices.paths)
                searched = cheaper if cheaper.excess_bytes <= 0 else searched
            found = searched
        return found

    def _cost(self, found: Found, blocks: Blocks) -> Cost:
        """What the choice costs if `blocks` are recomputed."""
        parts, graph = found.tables.micro_batches, found.tables.grouping.graph
        again = Recomputation(graph, blocks)
        return total(account(graph, self.model, parts, *found.placed, again).values())


def _repaired(
    problem: Problem, result: SearchResult, cost: float, near: float
) -> SearchResult | None:
    """A descent from `result` to within a lowered limit, if it costs hardly more than `cost`."""
    choice, _ = descend(problem, result.choice)
    found, memory = problem.evaluate(choice)
    if memory > problem.memory_limit or found > cost * (1 + near):
        return None
    return dataclasses.replace(result, choice=choice, cost=found, memory=memory)
