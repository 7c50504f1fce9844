"""A quick look at a number of micro-batches: the cost of a plan of few strategies.

Where memory binds, it decides how many micro-batches are best and whether to recompute, and what a
search finds differs by factors. So a search among `_CAP` strategies of each group tells which of
the possibilities are worth the whole space.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .cost.model import CostModel
from .cost.recompute import Blocks, Recomputation
from .graph import Graph
from .search.budget import Budget
from .search.descend import descend
from .search.eliminate import eliminate
from .search.group_table import NoStrategy, Space
from .search.narrow import sketch
from .search.pair_prices import PairPrices
from .search.progress import Progress
from .search.tables import build_tables

_CAP = 100


@dataclass(frozen=True)
class Look:
    """seconds: of a plan that fits, inf if none was found; free_s: of one that need not fit."""

    parts: int
    blocks: Blocks
    seconds: float
    free_s: float

    def between(self, part: float) -> float:
        """Seconds that far on the way from `free_s` to `seconds`; `free_s` before it begins."""
        return self.free_s + max(part, 0.0) * (self.seconds - self.free_s)

    def position(self, seconds: float) -> float:
        """How far on that way `seconds` are."""
        way = self.seconds - self.free_s
        return (seconds - self.free_s) / way if way > 0 else 0.0


@dataclass
class Looker:
    """micro: number of micro-batches -> the graph of one, with forks."""

    micro: Callable[[int], Graph]
    model: CostModel
    space: Space

    def __post_init__(self) -> None:
        self._prices = PairPrices(self.model.cluster.mesh, self.model.comm.price)
        self._space = dataclasses.replace(self.space, cap=min(self.space.cap, _CAP))
        self._known: dict[tuple[int, Blocks], Look] = {}

    def look(self, parts: int, blocks: Blocks) -> Look:
        """With `parts` micro-batches, recomputing `blocks`."""
        if (parts, blocks) not in self._known:
            self._known[parts, blocks] = self._look(parts, blocks)
        return self._known[parts, blocks]

    def binds(self, parts: int) -> bool:
        """Whether a look has shown that memory binds there without recomputation."""
        look = self._known.get((parts, ()))
        return look is not None and look.seconds > look.free_s

    def _look(self, parts: int, blocks: Blocks) -> Look:
        graph = self.micro(parts)
        again = Recomputation(graph, blocks)
        try:
            tables = build_tables(graph, self.model, parts, self._space, self._prices, again)
        except NoStrategy:
            tables = None
        if tables is None:
            return Look(parts, blocks, math.inf, math.inf)
        problem = tables.problem
        with Progress(problem, Budget()) as run:
            state = eliminate(problem, 0.0, frozenset())
            free = state.expand_greedily()
            if not run.offer(free):
                if state.node:
                    run.offer(descend(problem, free)[0])
                else:
                    sketch(problem, run, free)
        return Look(parts, blocks, run.cost, run.free_cost)

    def around_best(
        self, counts: Sequence[int], first: int, blocks: Blocks, bar_s: float
    ) -> list[Look]:
        """Looks at the best of `counts` and its neighbours, as far as costs fall from `first`.

        first: a position in `counts`
        bar_s: what costs as much without a limit is not looked at further
        """
        seen = {first: self.look(counts[first], blocks)}
        if bar_s <= seen[first].free_s < math.inf:
            return list(seen.values())

        def cost(position: int) -> float:
            if not 0 <= position < len(counts):
                return math.inf
            if position not in seen:
                seen[position] = self.look(counts[position], blocks)
            return seen[position].seconds

        at = first
        while at + 1 < len(counts) and (cost(at + 1) < cost(at) or cost(at) == math.inf):
            at += 1
        if at == first:
            while cost(at - 1) < cost(at):
                at -= 1
        return list(seen.values())
