"""The optimum where memory does not bind, by the symmetry of axes of one extent and link class.

1. Strategies that differ only in the order of such axes are a class: they compute alike, and
   `sbp.counted` bounds the redistributions between two classes from below. For the problem of the
   classes, elimination tells the least score of a choice through each class (`marginals`), which no
   real choice through it falls below.
2. The strategies of the classes within a ceiling near the least score are priced exactly. If the
   best choice among them costs no more than the ceiling, no class left out has a better one: it is
   the optimum of all strategies. Else its cost is the ceiling, and once more. The first ceiling is
   the highest of a few that leaves few strategies.

There are far fewer classes than strategies, and mostly the bounds are within 0.3 % of the optimum,
so that few strategies are left.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cost.model import CostModel
from ..cost.recompute import Recomputation
from ..search.elimination import eliminate
from ..search.problem import ROUNDING
from ..search.reduced_costs import ReducedCosts
from .axis_classes import AxisClasses
from .tables.group_table import Space
from .tables.groups import Grouping
from .tables.pair_prices import PairPrices
from .tables.tables import Others, TableBuilder, Tables

_MIN_AXES = 5  # on fewer axes there are few strategies
_CEILINGS = (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1.6e-2)  # relative, above the least score
_FEW = 0.22  # of the strategies
_MOST = 0.6  # of the strategies: more are as well priced all
_SHOWN = 2  # classes of each table to find the next best in
_TOO_LARGE = 1.1  # times the limit: what the bounds choose; the optimum will hardly fit


def cheapest_tables(
    grouping: Grouping,
    model: CostModel,
    micro_batches: int,
    space: Space,
    prices: PairPrices,
    again: Recomputation,
) -> Tables | None:
    """Tables of few strategies, among them the choice of least cost of all, which fits the limit.

    The arguments are those of `build_tables`. None if that choice does not fit, or if this is no
    way to find it: on few axes, in a restricted space, where elimination leaves variables.
    """
    mesh, least = model.cluster.mesh, prices.least
    if mesh.num_axes < _MIN_AXES or space.allowed is not None:
        return None
    if not all(map(least.fits, grouping.graph.numbers_of_dims)):
        return None
    whole = replace(space, zero=False)  # to store parameters split saves memory only
    builder = TableBuilder(grouping, model, micro_batches, whole, prices, again)
    if not builder.prepare():
        return None
    classes = [AxisClasses.of_rows(t.assign, least.classes) for t in builder.group_tables]
    bounds = builder.among([c.first for c in classes], least).build().problem
    state = eliminate(bounds, 0.0, frozenset())
    if state.node:
        return None
    lowest, memory = bounds.evaluate(state.expand({}))
    if memory > _TOO_LARGE * model.limit_bytes:
        return None
    contexts = ReducedCosts(state, nodes_only=True)
    through = [contexts.through(table) for table in range(len(classes))]
    every = sum(len(c.of) for c in classes)

    def members(ceiling: float, at_least: int = 1) -> list[NDArray[np.int64]]:
        limit = ceiling * (1 + ROUNDING)
        return [c.members(t, limit, at_least) for c, t in zip(classes, through, strict=True)]

    ceiling = lowest * (1 + _CEILINGS[0])
    for share in _CEILINGS[1:]:
        if sum(map(len, members(lowest * (1 + share)))) <= _FEW * every:
            ceiling = lowest * (1 + share)
    while True:
        kept = members(ceiling)
        if sum(map(len, kept)) > _MOST * every:
            return None
        tables = builder.among(kept, prices).build()
        choice = eliminate(tables.problem, 0.0, frozenset()).expand({})
        cost, memory = tables.problem.evaluate(choice)
        if cost > ceiling * (1 + ROUNDING):
            ceiling = cost
            continue
        if memory > model.limit_bytes:
            return None
        return replace(tables, others=Others(builder, kept, members(0.0, _SHOWN)))
