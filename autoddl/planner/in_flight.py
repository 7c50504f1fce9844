"""The plan of one mesh with two micro-batches in flight, where that may be faster.

One micro-batch computes while the other one communicates (`plans.schedule.duplex`). With C seconds
of computation in a step and Y of communication, each on a queue of its own, a step takes

    T >= max(C, Y) >= l C + (1 - l) Y    for each 0 <= l <= 1

in whatever order, so that the least of the right side over all plans is a bound for each l. It is
additive: tables whose computation counts l times, and all else 1 - l times. The search begins with
l = 1/2, the serial step, and goes on where the lines of the plans known so far have their greatest
minimum. Plans are compared by their simulated steps: one that communicates more wins where that is
hidden. HiDup's own search (SoCC 2022, section 4.2) is exact on a chain of stages without a mesh.

Half a batch does not compute in half the time. Where all operators of two micro-batches, each
divided evenly over all devices, take about as long as the best plan with one at a time, none of
this is tried: these seconds are the bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..cost.model import CostModel, ExchangePrice
from ..cost.operators import compute_seconds, times_of
from ..graph.graph import SOURCE_KINDS, Graph
from ..sbp.signature import find_rule
from ..search.problem import Problem
from .batches import Batches
from .fit_in_memory import FittedSearch
from .options import MOST_IN_FLIGHT, PlanOptions
from .overlap import LIKELY, highest, overlapped
from .realize import Candidate
from .tables.groups import MicroBatches
from .tables.tables import Tables

BY_BYTES = ExchangePrice(1.0)  # all of the exchange without latencies, which a bucket pays once
_WORTH = 0.01  # above the bound: less is not worth a search
_PRICES = 3  # that are tried at most
_NEAR = 0.01  # above the bound: not worth another price
_SAME = 0.02  # between two prices: they give the same plans
_LEAST = 1e-3  # price of either: plans that are alike in the other are told apart by it


def even(counts: Sequence[int]) -> tuple[int, ...]:
    """Of the numbers of micro-batches those that can be in flight two at a time."""
    return tuple(n for n in counts if n % MOST_IN_FLIGHT == 0)


def two_of(micro: MicroBatches) -> MicroBatches:
    """The same, two of them in flight."""
    return replace(micro, in_flight=MOST_IN_FLIGHT)


def first_price(micro: MicroBatches) -> ExchangePrice:
    """At which the number of micro-batches and what is run again are chosen."""
    return BY_BYTES if _takes_turns(micro) else LIKELY


def overlapping(
    first: Candidate,
    one: FittedSearch,
    counts: Sequence[int],
    options: PlanOptions,
    model: CostModel,
) -> tuple[Candidate, bool]:
    """The best plan that overlaps, and whether two micro-batches in flight were tried beside one.

    first: found by the search `one` at the `first_price`
    model: with no prices of exchange
    """
    micro = one.estimator.micro
    if _takes_turns(micro):
        return best_in_turns(first, one, model), False
    best = overlapped(first, one, model)
    if options.in_flight is not None or micro.whole.is_stage:
        return best, False
    bound = best.result.lower_bound
    counts = even([n for n in counts if n >= best.tables.micro_batches])
    if not counts:
        return best, False
    least_s = counts[0] * _evenly_s(micro.graph(counts[0]), model)
    found: Candidate | None = None
    if best.step_s > least_s * (1 + _WORTH) and not one.is_over:
        priced = replace(model, exchange=BY_BYTES)
        estimator = replace(one.estimator, micro=two_of(micro), model=priced, corrections={})
        two = replace(one, estimator=estimator)
        in_two = Batches(counts, two).best(options.checkpointing)
        if in_two is not None:
            found = best_in_turns(in_two, two, model)
            least_s = max(least_s, found.result.lower_bound)
    if found is not None and found.step_s < best.step_s:
        best = found
    result = replace(best.result, lower_bound=min(bound, least_s, best.step_s))
    return replace(best, result=result).knowing(best), found is not None


def _takes_turns(micro: MicroBatches) -> bool:
    return micro.in_flight > 1 and not micro.whole.is_stage


def best_in_turns(first: Candidate, two: FittedSearch, model: CostModel) -> Candidate:
    """The best of a few plans in turns, at the micro-batches and blocks of `first`.

    first: found by the search `two`, whose prices are BY_BYTES
    model: with no prices of exchange
    """
    tables, is_whole = first.tables, not two.estimator.has_classes
    found, bound = first.serial(model), first.result.lower_bound / 2
    lines, prices = [_line(first)], [0.5]
    best = found
    while len(prices) < _PRICES and best.step_s > bound * (1 + _NEAR) and not two.is_over:
        price = min(max(highest(lines), _LEAST), 1 - _LEAST)
        if any(abs(price - other) < _SAME for other in prices):
            break
        priced = replace(tables, problem=_priced(tables, price))
        result = two.search(priced.problem, math.inf)
        fits = result and two.within_limit(priced, result)
        if result is None or fits is None:
            break
        if is_whole:
            bound = max(bound, result.lower_bound)
        cost, memory = tables.problem.evaluate(fits.result.choice)
        result = replace(fits.result, cost=cost, memory=memory)
        at_cost = Candidate(tables, result, first.paths)
        lines.append(_line(at_cost))
        prices.append(price)
        best = min(best, at_cost.serial(model), key=lambda candidate: candidate.step_s)
    result = replace(best.result, lower_bound=min(bound, best.step_s))
    return replace(best, result=result).knowing(best)


def _priced(tables: Tables, price: float) -> Problem:
    """With the computation `price` times, and all else 1 - `price` times."""
    problem, rest = tables.problem, 1 - price
    computes = [tables.micro_batches * group.compute_s for group in tables.groups]
    nodes = [
        price * own + rest * (cost - own)
        for cost, own in zip(problem.node_cost, computes, strict=False)
    ]
    leaves = problem.node_cost[len(nodes) :]
    edges = tuple(rest * cost for cost in problem.edge_cost)
    return replace(problem, node_cost=(*nodes, *leaves), edge_cost=edges)


def _line(found: Candidate) -> tuple[float, float]:
    """What a plan costs at the price 0, which is its communication, and how much more at 1."""
    computing_s = _computing_s(found)
    communicating_s = found.seconds - computing_s
    return communicating_s, computing_s - communicating_s


def _computing_s(found: Candidate) -> float:
    """Of a step."""
    maker, again = found.maker, found.tables.again.block_of
    own_s = sum(o.forward_s * (1 + (o.op.name in again)) + o.backward_s for o in maker.operators)
    return found.tables.micro_batches * own_s


def _evenly_s(graph: Graph, model: CostModel) -> float:
    """Of a micro-batch, what its operators take if each is divided evenly over all devices."""
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
