"""Searches with several numbers of micro-batches, and with blocks that are run again.

Without recomputation the smallest number of micro-batches that fits is taken (AutoDDL section 5.1:
the largest possible micro-batch), and a larger one only where memory makes the plan more than
`_WORTH_TRYING` slower than it could be, and only while the iteration becomes faster.

The search adds bytes up; what a plan holds at its fullest moment is known when it is written down
(`cost.lifetime`, of the executor). A plan that exceeds the limit there is searched again under a
limit lowered by the excess, so no plan exceeds it.

If nothing fits, or if memory costs more than running all of the model's repeated blocks (`blocks`)
again would, these are recomputed, in the same way: first all; then, at the placements found, as few
as fit, the first ones; then a search with these few. The faster of both is the result. What memory
costs is estimated from the plan without recomputation: what it loses to plans without a limit, and
what its placements would gain with the fewest micro-batches that may fit then. `Attempts.best`
returns the result.
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
from .cost.lifetime import memory_peak
from .cost.model import CostModel
from .cost.recompute import Blocks, Recomputation
from .graph import Graph
from .planned import PlannedEdge, PlannedOp
from .sbp.redistribute import PathTable
from .search.algorithms import Algorithm
from .search.budget import Budget
from .search.descend import descend
from .search.group_table import Space
from .search.pair_prices import PairPrices
from .search.placements import place
from .search.problem import Problem, SearchResult
from .search.tables import Tables, build_tables, least_bytes

Checkpointing = Literal["auto", "none", "all"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("auto", "none", "all")
_WORTH_TRYING = 0.25
_NARROWINGS = 8
_REPAIR = 0.005  # more seconds than without lowering the limit: not worth a search
_REFINEMENTS = 3


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

        The tables' memory is a sum; what the executor holds at its fullest moment may be more. Of a
        stage of a pipeline only the sum is known here.
        """
        tables = self.tables
        graph, model, parts = tables.grouping.graph, tables.model, tables.micro_batches
        needed = self.result.memory
        if (
            again.blocks or tables.again.blocks
        ):  # the tables count what stays inside of blocks in part
            costs = account(graph, model, parts, *self.placed, again)
            needed = total(costs.values()).memory_bytes
        if not graph.is_stage and model.limit_bytes < math.inf:
            peak = memory_peak(
                graph, model.cluster.mesh, parts, model.optimizer, *self.placed, "executor", again
            )
            needed = max(needed, peak.bytes)
        return needed - model.limit_bytes

    @property
    def is_near_free(self) -> bool:
        """True if hardly anything is lost to the memory limit."""
        return self.seconds <= self.result.free_cost * (1 + _WORTH_TRYING)


@dataclass
class Attempts:
    """The searches for one plan.

    micro:  number of micro-batches -> the graph of one, with forks
    counts: numbers of micro-batches to try, ascending
    """

    micro: Callable[[int], Graph]
    counts: Sequence[int]
    model: CostModel
    algorithm: Algorithm
    budget: Budget
    space: Space
    prices: PairPrices
    seed: int
    results: list[SearchResult] = field(default_factory=list)

    def best(self, checkpointing: Checkpointing) -> Found | None:
        """None if nothing fits. ValueError if all blocks are to be recomputed and there are none"""
        if checkpointing not in CHECKPOINTING:
            known = ", ".join(CHECKPOINTING)
            raise ValueError(f"unknown checkpointing {checkpointing!r}; use one of {known}")
        if checkpointing == "all":
            if not self.blocks:
                raise ValueError(
                    "the model has no repeated blocks that could be recomputed; use "
                    "checkpointing='auto' or 'none'"
                )
            return self._over_counts(self.blocks)
        plain = self._over_counts(())
        if checkpointing == "none" or not self.blocks:
            return plain
        if plain is not None and not self._is_worth_trying(plain):
            return plain
        again = self._over_counts(self.blocks)
        if again is not None:
            again = self._with_fewer(again)
        found = [f for f in (plain, again) if f is not None]
        return min(found, key=lambda f: f.seconds, default=None)

    @cached_property
    def blocks(self) -> Blocks:
        """What can be recomputed: names are the same for every number of micro-batches."""
        return repeated_blocks(self.micro(self.counts[0]))

    def _is_worth_trying(self, plain: Found) -> bool:
        """Whether memory costs more than recomputing everything would."""
        loss_s = plain.seconds - plain.result.free_cost
        if plain.result.end != "done":
            return False
        if plain.tables.micro_batches == self.counts[0] and loss_s <= 0:
            return False
        fewest = self.counts[self._first_fit(self.blocks)]
        return self._cost(plain, self.blocks, fewest).iteration_s - loss_s < plain.seconds

    def _over_counts(self, blocks: Blocks) -> Found | None:
        best: Found | None = None
        for parts in self.counts[self._first_fit(blocks) :]:
            beat_s = math.inf if best is None or blocks else best.seconds
            found = self._attempt(parts, beat_s, blocks)
            if best is not None and (found is None or found.seconds >= best.seconds):
                break
            if found is not None:
                best = found
                if found.is_near_free or found.result.end != "done":
                    break
        return best

    def _attempt(self, parts: int, beat_s: float, blocks: Blocks) -> Found | None:
        """A search; its limit falls until what it counts only in part fits as well."""
        again = Recomputation(self.micro(parts), blocks)
        tables = build_tables(self.micro(parts), self.model, parts, self.space, self.prices, again)
        if tables is None:
            return None
        first = result = self._search(tables.problem, beat_s)
        for tries in range(_NARROWINGS):
            if first is None or result is None:
                return None
            bound = min(first.lower_bound, result.cost)
            replaced = dataclasses.replace(result, lower_bound=bound)
            found = Found(tables, replaced, self.prices.paths)
            if found.excess_bytes <= 0:
                return found
            lower = result.memory - found.excess_bytes * (1 + tries / 2)
            if lower <= 0 or result.end != "done":
                return None
            problem = dataclasses.replace(tables.problem, memory_limit=lower)
            result = _repaired(problem, result, first.cost) or self._search(problem, beat_s)
        return None

    def _search(self, problem: Problem, beat_s: float) -> SearchResult | None:
        rng = np.random.default_rng(self.seed)
        result = self.algorithm(problem, rng, self.budget.less(self.results, beat_s))
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
            low, high = 0, len(blocks)
            while low < high:
                middle = (low + high) // 2
                trial = Recomputation(found.tables.grouping.graph, blocks[:middle])
                if found.excess_with(trial) <= 0:
                    high = middle
                else:
                    low = middle + 1
            if high == len(blocks):
                return found
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

    def _cost(self, found: Found, blocks: Blocks, parts: int | None = None) -> Cost:
        """What the choice costs if `blocks` are recomputed, or with another number of parts."""
        parts = parts or found.tables.micro_batches
        graph = self.micro(parts)
        again = Recomputation(graph, blocks)
        return total(account(graph, self.model, parts, *found.placed, again).values())


def _repaired(problem: Problem, result: SearchResult, cost: float) -> SearchResult | None:
    """A descent from `result` to within a lowered limit, if it costs hardly more than `cost`."""
    choice, _ = descend(problem, result.choice)
    found, memory = problem.evaluate(choice)
    if memory > problem.memory_limit or found > cost * (1 + _REPAIR):
        return None
    return dataclasses.replace(result, choice=choice, cost=found, memory=memory)
