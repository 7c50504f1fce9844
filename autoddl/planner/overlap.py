"""The plan of one mesh whose gradients travel beside the backward pass.

The seconds of a step that overlaps are no sum of what groups of operators cost, so plans are
searched at prices of exchange (`cost.model.ExchangePrice`) and compared by their simulated steps:

    LIKELY         a fifth of the exchange, with its latencies. Where the number of micro-batches
                   and what is run again are chosen, too (`batches`). Its bound is one of serial
                   steps, as what it leaves out is never negative
    price 0        with what is late and cannot be hidden. Its bound is one of all plans
    price p        where the lines of the plans known so far have their greatest minimum, as any
                   plan's bound is linear in the price (`planner.tables`). Another bound, if the
                   first is far below
    serial         only where a serial step might be faster than all that was found

So a plan takes no more than a serial one of as many micro-batches and the same blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ..cost.model import CostModel, ExchangePrice
from ..cost.sharded_storage import stage_at
from ..graph.graph import Graph, Op
from ..plans.schedule.step import StepMaker
from .fit_in_memory import FittedSearch
from .realize import Candidate

# Of 0.05 to 0.4, with latencies and without, on fifteen cases from 2x2 to 8x8: at most 1 % from the
# best of all but where computation hardly counts (then a serial plan is better), 0.1 and 0.3 up to
# 50 and 14 %.
LIKELY = ExchangePrice(0.2, latencies=True)
_BOUNDS = 2  # prices of bounds that are tried at most
_NEAR = 0.02  # above the bound: not worth another one, which takes a search and gains half of that
_LATE = 0.1  # of the backward pass may be left where a gradient is late


def overlapped(likely: Candidate, one: FittedSearch, model: CostModel) -> Candidate:
    """The best of a few plans by their steps, at the micro-batches and blocks of `likely`.

    likely: found at the prices LIKELY
    model:  with no prices of exchange
    """
    parts, blocks = likely.key

    def searched(price: ExchangePrice | None) -> Candidate | None:
        if one.is_over:
            return None
        priced = replace(one.estimator, model=replace(model, exchange=price))
        return replace(one, estimator=priced).plan(parts, math.inf, blocks)

    serial_s = likely.result.lower_bound
    best, bound = likely.serial(model), -math.inf
    late, last = _late(best.maker, one.estimator.space.zero)
    lines = [_line(best, late, last)]
    prices = [0.0]
    for _ in range(_BOUNDS):
        price = prices[-1]
        found = searched(ExchangePrice(price, price, ahead=True, late=late, last=last))
        if found is None:
            break
        bound = max(bound, found.result.lower_bound)
        found = found.serial(model)
        best = min(best, found, key=lambda candidate: candidate.step_s)
        lines.append(_line(found, late, last))
        prices.append(highest(lines))
        if best.step_s <= bound * (1 + _NEAR) or prices[-1] in prices[:-1]:
            break
    if not best.step_s <= serial_s:
        found = searched(None)
        best = min(filter(None, (best, found)), key=lambda candidate: candidate.step_s)
    result = replace(best.result, lower_bound=min(bound, best.step_s))
    return replace(best, result=result).knowing(best)


def _late(maker: StepMaker, zero: bool) -> tuple[frozenset[str], frozenset[str]]:
    """`late` and `last` of an `ExchangePrice` that take this plan the longest.

    zero: parameters may be stored split; none that could be gathered is late
    """
    names: list[str] = []
    exchange_s = left_s = most_s = 0.0
    count = 0
    for own in maker.operators:
        if left_s > _LATE * maker.backward_s or (zero and _may_be_gathered(maker.graph, own.op)):
            break
        names.append(own.op.name)
        exchange_s += sum(maker.prices[number][1] for number in own.exchanged)
        if exchange_s - left_s > most_s:
            most_s, count = exchange_s - left_s, len(names)
        left_s += own.backward_s
    return frozenset(names[:count]), frozenset(names[: max(count - 1, 0)])


def _may_be_gathered(graph: Graph, op: Op) -> bool:
    """Whether ZeRO's stage 3 may gather one of its parameters."""
    spec = graph.spec(op)
    return any(
        graph.producers[tensor].kind == "param" and stage_at(spec, index, 3) == 3
        for index, tensor in enumerate(op.inputs)
    )


def _line(found: Candidate, late: frozenset[str], last: frozenset[str]) -> tuple[float, float]:
    """What a plan costs at the price 0, and how much more at a price of 1."""
    maker = found.maker
    least_s = found.seconds - maker.exchange_s
    hidden_s = maker.backward_s - sum(seconds for _, seconds in maker.prices)
    late_s = sum(
        sum(maker.prices[number][1] for number in own.exchanged) * (own.op.name in late)
        - own.backward_s * (own.op.name in last)
        for own in maker.operators
    )
    return least_s + late_s, -hidden_s - late_s


def highest(lines: Sequence[tuple[float, float]]) -> float:
    """The price between 0 and 1 at which the lowest line is highest."""
    prices = [0.0, 1.0]
    for (a, rise), (b, other) in itertools.combinations(lines, 2):
        if rise != other and 0 < (at := (b - a) / (rise - other)) < 1:
            prices.append(at)
    return max(sorted(prices), key=lambda price: min(a + rise * price for a, rise in lines))
