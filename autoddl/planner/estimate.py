"""An estimate for a number of micro-batches: what a plan costs at least.

Where memory binds, it decides how many micro-batches are best and whether to recompute, and what a
search finds differs by factors. So a lower bound (`coarse_to_fine`) tells which of the
possibilities are worth a search, and rules others out. Where what is known of fewer micro-batches
rules a number out (`ClassBounds.in_more`), no estimate is made.

Of steps that overlap (`overlap`) it is made at a price, which are listed here, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..cost.model import CostModel, Ends, StepPrice
from ..cost.operators import compute_seconds, times_of
from ..graph.graph import SOURCE_KINDS, Graph
from ..graph.regions import Blocks
from ..plans.schedule.step import StepMaker
from ..sbp.signature import find_rule
from .coarse_to_fine import ClassBounds, class_bounds
from .options import MOST_IN_FLIGHT
from .tables.group_table import NoStrategy, Space
from .tables.groups import MicroBatches
from .tables.memory import LeastBytes, least_at_turn
from .tables.pair_prices import PairPrices
from .tables.tables import Few, TableBuilder

# So much more a bound might be. 0.001 and 0.01 give the same plans of GPT-0.35B on 2x16, VGG13 on
# 64 and ViT-S in 0.4 GB on 2x8, in times within noise.
_NEAR = 0.003
# Prices are multiples of one in so many. Half and twice of it gave the same plans of VGG13 on 16
# and of a small GPT on 2x2 devices, in times within 8 %.
_SHARES = 8


@dataclass(frozen=True)
class Estimate:
    """seconds: no plan that fits takes less, inf if none fits; free_s: none at all does.

    bounds: that say so; None where nothing fits, and where nothing is known, which is 0 s then
    """

    parts: int
    blocks: Blocks
    seconds: float
    free_s: float
    bounds: ClassBounds | None = None

    @property
    def key(self) -> tuple[int, Blocks]:
        return self.parts, self.blocks


@dataclass
class Estimator:
    """corrections: seconds that a search found, which are more than the estimates.

    check: asked on the way, raises what ends the planning
    few:   among which a plan that is wanted soon is found; None: all
    serial: of serial steps, if the model is at a price of steps that overlap
    unhinted: of the same without hints: what is too slow there is not estimated with them, which
              take strategies away (hints also part operators from their groups: less than 1e-4)
    """

    micro: MicroBatches
    model: CostModel
    space: Space
    prices: PairPrices
    corrections: dict[tuple[int, Blocks], float] = field(default_factory=dict)
    check: Callable[[], None] = lambda: None
    few: Few | None = None
    serial: Estimator | None = None
    unhinted: Estimator | None = None

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, Blocks], Estimate] = {}
        # known, not known from here to there
        self._in_more: dict[tuple[int, int, int, Blocks], ClassBounds] = {}
        self._least: dict[Blocks, LeastBytes] = {}
        self._at_turn: dict[tuple[int, Blocks], float] = {}
        self._price = 0.0  # of memory, the last one

    def estimate(self, parts: int, blocks: Blocks, enough: float = math.inf) -> Estimate:
        """The lower bound for `parts` micro-batches with `blocks` run again.

        enough: a bound that reaches it need not be the best
        """
        known = self._known.get((parts, blocks))
        if known is None:
            self.check()
            if self.unhinted is not None and (parts, blocks) in self.unhinted._known:
                other = self.unhinted.estimate(parts, blocks, enough)
                if other.seconds >= enough:
                    return dataclasses.replace(other, bounds=None)
            known = self._estimate(parts, blocks, enough)
        elif known.bounds is not None:
            known = self._bounded(known.bounds.raised(enough, _NEAR), blocks)
        self._known[parts, blocks] = known
        found_s = self.corrections.get((parts, blocks), 0.0)
        return known if known.seconds >= found_s else dataclasses.replace(known, seconds=found_s)

    def correct(self, estimate: Estimate, found_s: float) -> None:
        """What a search found counts from now on."""
        self.corrections[estimate.key] = found_s

    def least_bytes(self, parts: int, blocks: Blocks) -> float:
        """What a device needs at least with `parts` micro-batches, recomputing `blocks`."""
        if blocks not in self._least:
            again = self.micro.again(1, blocks)
            self._least[blocks] = LeastBytes.of(self.micro.whole, self.model, again)
        least = self._least[blocks].within(parts)
        if not least <= self.model.limit_bytes < least + self._least[blocks].masters:
            return least
        if (parts, blocks) not in self._at_turn:
            again = self.micro.again(parts, blocks)
            self._at_turn[parts, blocks] = least_at_turn(again, self.model, parts)
        return max(least, self._at_turn[parts, blocks])

    def with_some(self, parts: int, blocks: Blocks) -> tuple[float, float, int]:
        """Seconds with no block run again, and of each that is, memory ignored; how many must be.

        So many must be that their part of what all of `blocks` save is what is missing.
        """
        free_s = self.estimate(parts, (), 0.0).free_s
        each_s = (self.estimate(parts, blocks, 0.0).free_s - free_s) / len(blocks)
        whole, least = (self.least_bytes(parts, own) for own in ((), blocks))
        short = (whole - self.model.limit_bytes) / max(whole - least, 1.0)
        return free_s, each_s, max(1, math.ceil(len(blocks) * short))

    def builder(self, parts: int, blocks: Blocks) -> TableBuilder:
        """A builder of the tables for `parts` micro-batches with `blocks` run again."""
        known, price = (self.serial or self)._known.get((parts, blocks)), self.model.price
        if known is not None and known.bounds is not None:
            serial = known.bounds.builder
            return serial if price is None else serial.at_price(price)
        again, grouping = self.micro.again(parts, blocks), self.micro.grouping(parts)
        fixed = self.model, parts, self.space, self.prices, again
        return TableBuilder(grouping, *fixed, self.check)

    def _estimate(self, parts: int, blocks: Blocks, enough: float) -> Estimate:
        builder = self.builder(parts, blocks)
        try:
            bounds = class_bounds(builder, self.prices.least, self._price)
        except NoStrategy:
            return Estimate(parts, blocks, math.inf, math.inf)
        if bounds is None:
            return Estimate(parts, blocks, 0.0, 0.0)
        return self._bounded(bounds.raised(enough, _NEAR), blocks)

    def _bounded(self, bounds: ClassBounds, blocks: Blocks) -> Estimate:
        if math.isfinite(bounds.bound):
            self._price = bounds.dual.price
        parts = bounds.builder.micro_batches
        return Estimate(parts, blocks, bounds.bound, bounds.free_s, bounds)

    def around_best(
        self,
        counts: Sequence[int],
        first: int,
        blocks: Blocks,
        enough: float,
        looks_at_all: bool = False,
    ) -> list[Estimate]:
        """Estimates at the best of `counts` and its neighbours, as far as costs fall from `first`.

        first:  a position in `counts`
        enough: what costs as much is not looked at further
        looks_at_all: the others, too, where none costs less than `enough`: estimates that end there
                do not tell which of two numbers is the better one. Of 29 MLPs on two kinds of hosts
                in little memory two took 1.16 and 1.06 times as long without it, as even shares,
                which were better, seemed to have no plan as fast as one at other shares
        """
        seen: dict[int, Estimate] = {}

        def cost(position: int) -> float:
            if not 0 <= position < len(counts):
                return math.inf
            if position not in seen:
                least = min((estimate.seconds for estimate in seen.values()), default=math.inf)
                most_s = min(enough, least)
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
        rest = counts[at + 1 :] if at == first and cost(at) == math.inf else ()
        if len(rest) > 1 and self._is_too_large(rest[0], blocks, enough, rest[-1]):
            return list(seen.values())
        if at == first:
            while at + 1 < len(counts) and (cost(at + 1) < cost(at) or cost(at) == math.inf):
                at += 1
        if at <= first:
            while cost(at - 1) < cost(at):
                at -= 1
        if looks_at_all and enough <= cost(at):
            for position in range(len(counts)):
                cost(position)
        return list(seen.values())

    def _free_floor(self, parts: int, blocks: Blocks) -> float:
        """Seconds that no plan falls below, by the estimates so far.

        Memory ignored, more micro-batches or running blocks again never cost less.
        """
        every = [*self._known.values(), *(self.unhinted._known.values() if self.unhinted else ())]
        fewer = (k for k in every if k.parts <= parts and k.blocks in ((), blocks))
        return max((k.free_s for k in fewer if k.free_s < math.inf), default=0.0)

    def _is_too_large(
        self, parts: int, blocks: Blocks, enough: float, most: int | None = None
    ) -> bool:
        """Whether an estimate at fewer micro-batches shows that `enough` is too little time.

        most: for as many at most as well
        """
        most = most or parts
        known = (k.parts for k in self._known.values() if k.blocks == blocks)
        if any(parts <= n <= most for n in known) or enough == math.inf:
            return False
        if self.unhinted is not None and self.unhinted._is_too_large(parts, blocks, enough, most):
            return True
        fewer = [k for k in self._known.values() if k.parts < parts and k.blocks == blocks]
        estimate = max(fewer, key=lambda k: k.parts, default=None)
        if estimate is None or estimate.bounds is None or estimate.seconds <= estimate.free_s:
            return False
        key = estimate.parts, parts, most, blocks
        bounds = self._in_more.get(key) or estimate.bounds.in_more(parts, most)
        self._in_more[key] = bounds.raised(enough, _NEAR)
        return self._in_more[key].bound >= enough

    def is_below_all(self, parts: int, blocks: Blocks, least: int) -> bool:
        """Whether it takes less without `blocks` than recomputing them, in `least` or more parts.

        GPT-5.8B on 32 devices then needs four estimates, not nine, and is planned 1.4 times as
        fast.
        """
        self.estimate(least, blocks, 0.0)
        most_s = self._free_floor(least, blocks)
        if self._free_floor(parts, ()) >= most_s or self._is_too_large(parts, (), most_s):
            return False
        estimate = self.estimate(parts, (), most_s)
        return estimate.bounds is not None and estimate.seconds < most_s


def evenly_s(graph: Graph, model: CostModel) -> float:
    """Seconds of a micro-batch if each operator is divided evenly over all devices."""
    device, count = model.cluster.device, model.cluster.num_devices
    known: dict[int, float] = {}
    found = 0.0
    for op in graph.ops:
        alike = graph.alike[op.name]
        if op.kind in SOURCE_KINDS or op.name in graph.free_ops:
            continue
        if alike not in known:
            spec, rule = graph.spec(op), find_rule(op.kind)
            assert rule is not None, f"{op.name} has no rule"
            moved = sum(tensor.bytes for tensor in (*spec.inputs, *spec.outputs)) / count
            has_grad = any(out in graph.needs_grad for out in op.outputs)
            sizes = np.array([float(count)]), np.array([moved])
            times = times_of(device, graph, op)
            known[alike] = float(compute_seconds(spec, rule, device, *sizes, has_grad, times)[0])
        found += known[alike]
    return found


@dataclass(frozen=True)
class StepParts:
    """What a step that overlaps consists of, in seconds (`overlap`).

    first:    gathers before all else
    computation, collectives, hidden, last, late: as `StepPrice` has them; latencies that a
              bucket pays once are left out
    once:     of the exchange of gradients that travel once
    """

    first: float
    computation: float
    collectives: float
    hidden: float
    last: float
    late: float
    beside: float
    left: float
    once: float

    @staticmethod
    def of(maker: StepMaker, parts: int, ends: Ends) -> StepParts:
        """Of a step of so many micro-batches."""
        again = maker.again.block_of
        first = computation = gathered = last = late = beside = left = 0.0
        once = [
            further_s if exchange.is_all_reduce else latency_s + further_s
            for exchange, (latency_s, further_s) in zip(maker.exchanges, maker.prices, strict=True)
        ]
        for own in maker.operators:
            name, runs = own.op.name, 1 + (own.op.name in again)
            backward_s = own.backward_s + (runs - 1) * own.forward_s
            first += sum(own.first)
            computation += parts * (own.forward_s + backward_s)
            gathered += parts * (runs * sum(own.again) + sum(own.back))
            last += sum(own.again)
            exchange_s = sum(once[number] for number in own.exchanged)
            last += exchange_s
            late += exchange_s * (name in ends.late)
            beside += backward_s * (name not in ends.early)
            left += backward_s * (name in ends.left)
        often = [parts if exchange.is_often else 1 for exchange in maker.exchanges]
        hidden = gathered + sum(n * s for n, s in zip(often, once, strict=True))
        after = sum(
            s for s, exchange in zip(once, maker.exchanges, strict=True) if not exchange.is_often
        )
        collectives = maker.serial_s(parts) - maker.exchange_s - first - computation - gathered
        return StepParts(first, computation, collectives, hidden, last, late, beside, left, after)

    def at(self, price: StepPrice) -> float:
        """What the step costs."""
        return (
            self.first
            + price.computation * self.computation
            + price.collectives * self.collectives
            + price.hidden * self.hidden
            + price.last * (self.last - price.in_flight * self.beside)
            + price.late * (self.late - price.in_flight * self.left)
            + price.after * self.once
        )


def one_at_a_time(ends: Ends) -> list[StepPrice]:
    """Prices whose bounds are means of C + A, C + A - b + y and A + H."""
    found: list[StepPrice] = []
    for k in range(_SHARES):
        for n in range(_SHARES + 1 - k):
            moving, last = k / _SHARES, n / _SHARES
            found.append(StepPrice(1 - moving, 1.0, moving, last, 1 - moving - last, 1, ends))
    return found


def after_passes() -> list[StepPrice]:
    """The price whose bound is C + A + x, of x seconds of gradients that travel once.

    That of a pipeline stage for whose gradients others wait: x follows its last pass.
    """
    return [StepPrice(1.0, 1.0, 0.0, 0.0, 0.0, after=1.0)]


def any_in_flight(micro_batches: int, ends: Ends) -> list[StepPrice]:
    """Prices whose bounds are means of C, C - b + y and A + H.

    Of two micro-batches in flight both are the last one, whose backward pass b counts.

    Where communication or its end count most, plans compute everything everywhere; where they do
    not count, the bound is that of operators that are divided evenly.
    """
    width = min(MOST_IN_FLIGHT, micro_batches)
    found: list[StepPrice] = []
    for k in range(1, _SHARES // 2 + 1):
        for n in range(_SHARES // 4 + 1):
            moving, last = k / _SHARES, n / _SHARES
            found.append(
                StepPrice(1 - moving, moving, moving, last, 1 - moving - last, width, ends)
            )
    return found


def least_in_flight_s(maker: StepMaker, parts: int) -> float:
    """No step of so many micro-batches takes less with several in flight, whatever their turns.

    maker: of the step with one in flight
    """
    own = StepParts.of(maker, parts, Ends())
    return max(map(own.at, any_in_flight(parts, Ends())))
