"""Plans one stage of a pipeline: its own graph on its own mesh, with micro-batches in flight.

The search problem counts the memory of all micro-batches in flight (`stage_memory`). Unless another
algorithm is asked for, choices at rising prices of memory are tried until one fits
(`stage_search.sweep`), and then descend as far as the limit allows. What a plan really holds is
its account's (`StagePlan.price`); where that is too much the limit is lowered.

At a price l of memory, no choice within limit L costs less than  cost + l (memory - L)  does.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np

from ...cost.model import CostModel
from ...cost.recompute import Recomputation
from ...graph.graph import Graph
from ...graph.regions import repeated_blocks
from ...plans import StagePlan
from ...plans.format import format_bytes
from ...plans.stage_figures import stage_figures
from ...search.algorithms import find_algorithm
from ...search.budget import Budget
from ...search.local_search import descend
from ...search.problem import Choice, Problem, SearchResult
from ..options import DEFAULTS, PlanOptions
from ..planner import micro_graph, write_stage
from ..realize import Candidate
from ..tables.group_table import Space
from ..tables.pair_prices import PairPrices
from ..tables.tables import build_tables
from .stage_memory import with_in_flight
from .stage_search import sweep

_NARROWINGS = 6


def plan_stage(
    graph: Graph,
    model: CostModel,
    parts: int,
    held: int,
    options: PlanOptions = DEFAULTS,
    *,
    recompute: bool,
    prices: PairPrices | None = None,
) -> StagePlan:
    """The best plan found for a stage on `model`'s cluster, in `parts` micro-batches.

    held:      micro-batches in flight
    options:   of these the seed, the search and its restarts, and ZeRO
    recompute: its repeated blocks are run again in the backward pass, otherwise none
    prices:    of `model`'s cluster, if some are known

    Raises ValueError if nothing fits the memory.
    """
    started = time.perf_counter()
    micro = micro_graph(graph, parts)
    prices = prices or PairPrices(model.cluster.mesh, model.comm.price, model.comm.collectives)
    again = Recomputation(micro, repeated_blocks(micro) if recompute else ())
    free = dataclasses.replace(model, memory_limit_bytes=math.inf)
    tables = build_tables(micro, free, parts, Space(zero=options.zero), prices, again)
    assert tables is not None  # there is no limit
    tables = dataclasses.replace(tables, model=model)
    whole = with_in_flight(tables, held)
    limit, least, bound = model.limit_bytes, math.inf, math.inf
    for tries in range(_NARROWINGS):
        problem = dataclasses.replace(whole, memory_limit=limit)
        if options.search == "auto":
            result = _by_price(problem)
        else:
            rng, search = np.random.default_rng(options.seed), find_algorithm(options.search)
            result = search(problem, rng, Budget(), options.restarts)
        if result is None:
            break
        bound = min(bound, result.lower_bound)
        result = dataclasses.replace(result, lower_bound=bound)
        found = Candidate(dataclasses.replace(tables, problem=problem), result, prices.paths)
        plan = write_stage(found, options.seed, time.perf_counter() - started)
        needed = stage_figures(plan).price.memory_bytes(held)
        if needed <= model.limit_bytes:
            return plan
        least = min(least, needed)
        limit = min(limit, result.memory) - (needed - model.limit_bytes) * 2**tries
        if limit <= 0:
            break
    smallest = f"; the smallest found needs {format_bytes(least)}" if least < math.inf else ""
    raise ValueError(
        f"no plan fits the memory limit of {format_bytes(model.limit_bytes)} a device with {held} "
        f"micro-batches in flight{smallest}; use more stages or devices, or more micro-batches"
    )


def _by_price(problem: Problem) -> SearchResult | None:
    """The best choice that a sweep over prices of memory and a descent from there find."""
    tried: list[tuple[Choice, float, float, float]] = []

    def offer(choice: Choice, price: float) -> tuple[float, bool]:
        cost, memory = problem.evaluate(choice)
        tried.append((choice, cost, memory, price))
        return cost, memory <= problem.memory_limit

    choice, cost, memory, _ = tried[sweep(problem, offer)]
    if memory > problem.memory_limit:
        return None
    bound = max(c + price * (m - problem.memory_limit) if price else c for _, c, m, price in tried)
    if len(tried) > 1:
        choice, _ = descend(problem, choice)
        cost, memory = problem.evaluate(choice)
    return SearchResult(
        choice, cost, memory, len(tried), "elimination at prices of memory",
        lower_bound=min(bound, cost), free_cost=tried[0][1],
    )  # fmt: skip
