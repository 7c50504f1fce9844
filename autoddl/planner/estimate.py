"""An estimate for a number of micro-batches: about what a plan costs.

Where memory binds, it decides how many micro-batches are best and whether to recompute, and what a
search finds differs by factors. So a lower bound (`coarse_to_fine`), or on few axes a search among
`_CAP` strategies of each group, tells which of the possibilities are worth a search. Where what is
known of fewer micro-batches rules a number out (`ClassBounds.in_more`), no estimate is made.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..cost.model import CostModel
from ..graph.regions import Blocks
from ..search.budget import Budget, Progress
from ..search.lagrangian import approach
from ..search.reduced_costs import Restricted
from .coarse_to_fine import ClassBounds, class_bounds
from .tables.group_table import NoStrategy, Space
from .tables.groups import MicroBatches
from .tables.memory import LeastBytes
from .tables.pair_prices import PairPrices
from .tables.tables import build_tables

# 50 and 200 gave the same plans of VGG13 on 64, GPT-36B on 256 and GPT-0.35B on 2x16 devices.
_CAP = 100  # strategies of a group, on few axes
_MIN_AXES = 5  # on fewer axes there are few strategies, and classes of them save nothing
_NEAR = 0.003  # so much more a bound might be
_SEARCHED = 0.75  # of the way from `free_s` to `seconds`, where searches end at least
WORTH_ESTIMATE = 1.1  # times the cost of the best estimate: no further estimate
_WRONG = 1.1  # times what it said: an estimate was wrong


@dataclass(frozen=True)
class Estimate:
    """seconds: of a plan that fits, inf if none was found; free_s: of one that need not fit.

    bounds: if known, `seconds` and `free_s` are lower bounds, of all strategies
    """

    parts: int
    blocks: Blocks
    seconds: float
    free_s: float
    bounds: ClassBounds | None = None

    @property
    def key(self) -> tuple[int, Blocks]:
        return self.parts, self.blocks

    @property
    def least_s(self) -> float:
        """What a search will hardly go below; never if this is a bound."""
        if self.bounds is not None:
            return self.seconds
        return self.free_s + _SEARCHED * (self.seconds - self.free_s)


@dataclass
class Estimator:
    """corrections: seconds that a search found where estimates were wrong.

    check: asked before each estimate, raises what ends the planning
    """

    micro: MicroBatches
    model: CostModel
    space: Space
    prices: PairPrices
    corrections: dict[tuple[int, Blocks], float] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        comm = self.model.comm
        self._prices = PairPrices(comm.mesh, comm.price, comm.collectives)
        self._space = dataclasses.replace(self.space, cap=min(self.space.cap, _CAP))
        self._known: dict[tuple[int, Blocks], Estimate] = {}
        self._in_more: dict[tuple[int, int, Blocks], ClassBounds] = {}  # known, not known
        self._least: dict[Blocks, LeastBytes] = {}
        self._price = 0.0  # of memory, the last one

    def estimate(self, parts: int, blocks: Blocks, enough: float = math.inf) -> Estimate:
        """With `parts` micro-batches, recomputing `blocks`.

        enough: a bound that reaches it need not be the best
        """
        known = self._known.get((parts, blocks))
        if known is None:
            self.check()
            known = self._estimate(parts, blocks, enough)
        elif known.bounds is not None:
            known = self._bounded(known.bounds.raised(enough, _NEAR), blocks)
        self._known[parts, blocks] = known
        found_s = self.corrections.get((parts, blocks), 0.0)
        return known if known.seconds >= found_s else dataclasses.replace(known, seconds=found_s)

    def correct(self, estimate: Estimate, found_s: float) -> None:
        """Of a bound, or a estimate that was wrong, what a search found counts from now on."""
        if estimate.bounds is not None or found_s > estimate.seconds * _WRONG:
            self.corrections[estimate.key] = found_s

    def least_bytes(self, parts: int, blocks: Blocks) -> float:
        """What a device needs at least with `parts` micro-batches, recomputing `blocks`."""
        if blocks not in self._least:
            again = self.micro.again(1, blocks)
            self._least[blocks] = LeastBytes.of(self.micro.whole, self.model, again)
        return self._least[blocks].within(parts)

    @property
    def worth_estimate(self) -> float:
        """Times the seconds of the best estimate: what takes more is left for the time being.

        A bound that a search has confirmed rules others out; other estimates may be wrong.
        """
        return 1.0 if self.has_classes else WORTH_ESTIMATE

    def _estimate(self, parts: int, blocks: Blocks, enough: float) -> Estimate:
        grouping = self.micro.grouping(parts)
        again = self.micro.again(parts, blocks)
        try:
            if self.has_classes:
                options = self.model, parts, self.space, self.prices, again, self._price
                bounds = class_bounds(grouping, *options)
                if bounds is not None:
                    return self._bounded(bounds.raised(enough, _NEAR), blocks)
            options = self.model, parts, self._space, self._prices, again
            tables = build_tables(grouping.graph, *options, grouping)
        except NoStrategy:
            tables = None
        if tables is None:
            return Estimate(parts, blocks, math.inf, math.inf)
        problem = tables.problem
        with Progress(problem, Budget()) as run:
            approach(Restricted.of(problem), run, _NEAR)
        return Estimate(parts, blocks, run.cost, run.free_cost)

    @property
    def has_classes(self) -> bool:
        """Whether there are axes enough for strategies that differ in their order only."""
        return self.model.cluster.mesh.num_axes >= _MIN_AXES

    def _bounded(self, bounds: ClassBounds, blocks: Blocks) -> Estimate:
        if math.isfinite(bounds.bound):
            self._price = bounds.dual.price
        parts = bounds.builder.micro_batches
        return Estimate(parts, blocks, bounds.bound, bounds.free_s, bounds)

    def around_best(
        self, counts: Sequence[int], first: int, blocks: Blocks, enough: float
    ) -> list[Estimate]:
        """Estimates at the best of `counts` and its neighbours, as far as costs fall from `first`.

        first:  a position in `counts`
        enough: what costs as much is not looked at further
        """
        seen: dict[int, Estimate] = {}

        def cost(position: int) -> float:
            if not 0 <= position < len(counts):
                return math.inf
            if position not in seen:
                least = min((estimate.seconds for estimate in seen.values()), default=math.inf)
                most_s = min(enough, least * self.worth_estimate)
                floor = self._free_floor(counts[position], blocks)
                if floor >= most_s or self._is_too_large(counts[position], blocks, most_s):
                    return math.inf
                seen[position] = self.estimate(counts[position], blocks, most_s)
            return seen[position].seconds

        def is_out(position: int) -> bool:
            return self._free_floor(counts[position], blocks) >= enough

        at = first
        while enough <= cost(at) and at > 0 and is_out(at):
            at -= 1
        if at == first:
            while at + 1 < len(counts) and (cost(at + 1) < cost(at) or cost(at) == math.inf):
                at += 1
        if at <= first:
            while cost(at - 1) < cost(at):
                at -= 1
        return list(seen.values())

    def _free_floor(self, parts: int, blocks: Blocks) -> float:
        """Seconds that no plan falls below, by the estimates so far.

        Memory ignored, more micro-batches or running blocks again never cost less.
        """
        fewer = (k for k in self._known.values() if k.parts <= parts and k.blocks in ((), blocks))
        return max((k.free_s for k in fewer if k.free_s < math.inf), default=0.0)

    def _is_too_large(self, parts: int, blocks: Blocks, enough: float) -> bool:
        """Whether an estimate at fewer micro-batches shows that `enough` is too little time."""
        if (parts, blocks) in self._known or enough == math.inf:
            return False
        fewer = [k for k in self._known.values() if k.parts < parts and k.blocks == blocks]
        estimate = max(fewer, key=lambda k: k.parts, default=None)
        if estimate is None or estimate.bounds is None or estimate.seconds <= estimate.free_s:
            return False
        key = estimate.parts, parts, blocks
        bounds = self._in_more.get(key) or estimate.bounds.in_more(parts)
        self._in_more[key] = bounds.raised(enough, _NEAR)
        return self._in_more[key].bound >= enough

    def is_below_all(self, parts: int, blocks: Blocks, least: int) -> bool:
        """Whether it takes less without `blocks` than recomputing them, in `least` or more parts.

        GPT-5.8B on 32 devices then needs four estimates, not nine, and is planned 1.4 times as
        fast. False where estimates are no bounds.
        """
        if not self.has_classes:
            return False
        self.estimate(least, blocks, 0.0)
        most_s = self._free_floor(least, blocks)
        if self._free_floor(parts, ()) >= most_s or self._is_too_large(parts, (), most_s):
            return False
        estimate = self.estimate(parts, (), most_s)
        return estimate.bounds is not None and estimate.seconds < most_s
