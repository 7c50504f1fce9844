"""The smallest footprint that is found: what a refusal names.

With and without recomputation, and from the most micro-batches down to where fewer need more:

    needed(argmin over choices of  price bytes + seconds),  the price falling from "bytes alone"

(`lagrangian.falling_prices`), and of these the least. The bytes are added up, and what is needed at
the fullest moment can be more: a choice of the least bytes redistributes much, in buffers, and a
faster one does not. Nothing here depends on the limit that was too low, so equal refusals name one
number.
"""

from __future__ import annotations

import dataclasses
import math

from ..cost.recompute import Checkpointing
from ..graph.regions import Blocks
from ..sbp.redistribute import PathTable
from ..search.elimination import eliminate
from ..search.lagrangian import falling_prices
from ..search.problem import Choice, SearchResult
from .batches import Batches
from .realize import Candidate
from .tables.group_table import NoStrategy
from .tables.memory import least_bytes
from .tables.tables import Tables, build_tables

_PRICES = 16
_SMALL = 20_000  # strategies of all variables: in larger problems two prices are tried
_MISSES = 2  # numbers of micro-batches that need more, until no further one is tried


def smallest(batches: Batches, checkpointing: Checkpointing) -> Candidate:
    """What needs the least memory, whatever it costs, whether or not it fits.

    batches: that found nothing
    """
    families: list[Blocks] = [()] if checkpointing != "all" else []
    if checkpointing != "none" and batches.blocks:
        families.insert(0, batches.blocks)
    least: Candidate | None = None
    for blocks in families:
        least = _least_of(batches, blocks, least)
    assert least is not None
    model = batches.estimator.model
    problem = dataclasses.replace(least.tables.problem, memory_limit=model.limit_bytes)
    tables = dataclasses.replace(least.tables, model=model, problem=problem)
    return Candidate(tables, least.result, least.paths)


def _least_of(batches: Batches, blocks: Blocks, least: Candidate | None) -> Candidate | None:
    """At the best number of micro-batches, recomputing `blocks`; or `least`, if it needs less."""
    estimator = batches.estimator
    model = dataclasses.replace(estimator.model, memory_limit_bytes=math.inf)
    misses = 0
    for parts in reversed(batches.counts):
        grouping = estimator.micro.grouping(parts)
        graph, again = grouping.graph, estimator.micro.again(parts, blocks)
        if least is not None and least_bytes(graph, model, again) >= least.needed_bytes:
            break
        try:
            options = model, parts, estimator.space, estimator.prices, again
            tables = build_tables(graph, *options, grouping)
        except NoStrategy:  # so small a micro-batch cannot be divided as the space asks
            if parts == batches.counts[0] and least is None:
                raise
            continue
        assert tables is not None  # there is no limit
        found = _swept(tables, estimator.prices.paths, least)
        misses = misses + 1 if found is least else 0
        least = found
        if misses == _MISSES or (misses and not _is_small(tables)):
            break
    return least


def _swept(tables: Tables, paths: PathTable, least: Candidate | None) -> Candidate | None:
    """The least of the choices at falling prices of memory; or `least`, if it needs less."""
    problem = tables.problem

    def solve(price: float) -> Choice:
        return eliminate(problem, price, frozenset()).expand_greedily()

    for choice in falling_prices(problem, solve, _PRICES if _is_small(tables) else 2):
        cost, memory = problem.evaluate(choice)
        if least is not None and memory >= least.needed_bytes:
            break
        result = SearchResult(choice, cost, memory, 1, "least memory")
        found = Candidate(tables, result, paths)
        if least is None or found.needed_bytes < least.needed_bytes:
            least = found
    return least


def _is_small(tables: Tables) -> bool:
    return sum(tables.problem.sizes()) <= _SMALL
