"""Makes a schedule by name: the stages' orders of computation, and their transfers.

make_schedule("1f1b", stages=4, micro_batches=8)
"""

from __future__ import annotations

from collections.abc import Iterable

from .costs import Costs
from .orders import orders_of
from .schedule import Flow, Schedule, chain, check_flows
from .transfers import with_transfers


def make_schedule(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    chunks: int = 1,
    delay: int | None = None,
    flows: Iterable[Flow] | None = None,
    costs: Costs | None = None,
    overlap: bool = True,
) -> Schedule:
    """The schedule `name` (one of `orders.SCHEDULES`) for `stages` stages.

    chunks: parts of the model on every stage; only interleaved schedules have more than one
    delay:  how late the weight half of a backward pass runs (see `orders`); None: not separate
    flows:  between which parts tensors travel; None: between neighbours
    costs:  by which the transfers are ordered; None: equal passes and free transfers

    Raises ValueError if the name is unknown or the numbers do not fit.
    """
    orders = orders_of(name, stages, micro_batches, chunks, delay)
    parts = stages * chunks
    checked = chain(parts) if flows is None else check_flows(flows, parts)
    schedule = Schedule(
        name,
        micro_batches,
        chunks,
        delay is None and name != "zb-h1",
        checked,
        tuple(o.stash for o in orders),
        tuple(o.actions for o in orders),
    )
    return with_transfers(schedule, costs or Costs.uniform(parts, checked), overlap)
